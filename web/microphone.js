// Permission, echo cancellation, and the capture graph.
//
// The graph has a context of its own at the microphone's rate, whatever that is: not every browser
// connects a microphone to a context of another rate. The worklet resamples.

const ERRORS = {
  NotAllowedError: "The microphone is blocked. Allow it in the address bar, then press the button again.",
  NotFoundError: "No microphone was found.",
  NotReadableError: "The microphone is in use by another program.",
  OverconstrainedError: "This microphone cannot be used.",
};

export class MicrophoneError extends Error {}

export class Microphone {
  #onFrame;
  #onEnded;
  #stream = null;
  #context = null;
  #source = null;

  // `onFrame` gets Int16Array(480) frames at 24 kHz and a level 0..1; it must not keep the frame.
  constructor(onFrame, onEnded) {
    this.#onFrame = onFrame;
    this.#onEnded = onEnded;
  }

  get isOn() {
    return this.#stream !== null;
  }

  // Throws MicrophoneError with a sentence for the caller.
  async start() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new MicrophoneError("Browsers give microphones to pages on https:// or localhost only.");
    }
    let stream = null;
    const context = new AudioContext({ latencyHint: "interactive" });
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: {
          channelCount: 1,
          echoCancellation: true, // or the assistant would interrupt itself
          noiseSuppression: false, // both cost words: "old is the Brooklyn" came out
          autoGainControl: false, // as "old is simple, and", its first vowel clipped
        },
      });
      await context.audioWorklet.addModule("capture-worklet.js");
      const capture = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
      capture.port.onmessage = ({ data: frame }) => {
        this.#onFrame(frame, level(frame));
        capture.port.postMessage(frame, [frame.buffer]);
      };
      this.#source = context.createMediaStreamSource(stream); // kept, or Firefox may collect it
      this.#source.connect(capture);
      await context.resume();
    } catch (error) {
      stream?.getTracks().forEach((track) => track.stop());
      void context.close();
      throw new MicrophoneError(ERRORS[error.name] ?? `The microphone failed: ${error.message}`);
    }
    stream.getAudioTracks()[0].onended = () => {
      this.stop();
      this.#onEnded();
    };
    this.#stream = stream;
    this.#context = context;
  }

  stop() {
    this.#stream?.getTracks().forEach((track) => track.stop());
    void this.#context?.close();
    this.#stream = this.#context = this.#source = null;
  }
}

function level(frame) {
  let sum = 0;
  for (const sample of frame) {
    sum += sample * sample;
  }
  return Math.min(1, Math.sqrt(sum / frame.length) / 8000);
}
