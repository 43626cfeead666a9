// Permission, echo cancellation, and the capture graph.
//
// The one place of resampling is the browser's own: the context runs at 24 kHz, so the microphone's
// audio reaches the worklet at the rate the protocol wants.

const ERRORS = {
  NotAllowedError: "The microphone is blocked. Allow it in the address bar, then press the button again.",
  NotFoundError: "No microphone was found.",
  NotReadableError: "The microphone is in use by another program.",
  OverconstrainedError: "This microphone cannot be used.",
  NotSupportedError: "This browser cannot capture at 24 kHz. Please type, or use another browser.",
};

export class MicrophoneError extends Error {}

export class Microphone {
  #context;
  #onFrame;
  #onEnded;
  #stream = null;
  #nodes = [];

  // `onFrame` gets Int16Array(480) frames and a level 0..1; it must not keep the frame.
  constructor(context, onFrame, onEnded) {
    this.#context = context;
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
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: {
          channelCount: 1,
          echoCancellation: true, // or the assistant would interrupt itself
          noiseSuppression: false, // both cost words: "old is the Brooklyn" came out
          autoGainControl: false, // as "old is simple, and", its first vowel clipped
        },
      });
      await this.#context.audioWorklet.addModule("capture-worklet.js");
      const source = this.#context.createMediaStreamSource(stream);
      const capture = new AudioWorkletNode(this.#context, "capture", { numberOfOutputs: 0 });
      capture.port.onmessage = ({ data: frame }) => {
        this.#onFrame(frame, level(frame));
        capture.port.postMessage(frame, [frame.buffer]);
      };
      source.connect(capture);
      this.#nodes = [source, capture];
    } catch (error) {
      stream?.getTracks().forEach((track) => track.stop());
      throw new MicrophoneError(ERRORS[error.name] ?? `The microphone failed: ${error.message}`);
    }
    stream.getAudioTracks()[0].onended = () => {
      this.stop();
      this.#onEnded();
    };
    this.#stream = stream;
  }

  stop() {
    for (const node of this.#nodes) {
      node.disconnect();
      if (node.port) {
        node.port.onmessage = null;
      }
    }
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#nodes = [];
    this.#stream = null;
  }
}

function level(frame) {
  let sum = 0;
  for (const sample of frame) {
    sum += sample * sample;
  }
  return Math.min(1, Math.sqrt(sum / frame.length) / 8000);
}
