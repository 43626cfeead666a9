// Runs on the audio thread: 128-sample quanta in, 20 ms frames of PCM16 out by transfer.
//
// `process` allocates nothing: frames are taken from a pool and come back through the port once they
// are sent. If the page does not return them in time, frames are dropped.

const FRAME_SAMPLES = 480; // 20 ms at the context's 24 kHz, see microphone.js
const POOL_FRAMES = 50; // one second
const INT16_MAX = 32767;

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.pool = Array.from({ length: POOL_FRAMES }, () => new Int16Array(FRAME_SAMPLES));
    this.frame = this.pool.pop();
    this.length = 0;
    this.port.onmessage = ({ data }) => this.pool.push(data);
  }

  process([[channel]]) {
    if (!channel) {
      return true; // the microphone is not connected yet
    }
    for (let i = 0; i < channel.length; i++) {
      this.frame[this.length++] = Math.max(-1, Math.min(1, channel[i])) * INT16_MAX;
      if (this.length === FRAME_SAMPLES) {
        this.length = 0;
        const next = this.pool.pop();
        if (next) {
          this.port.postMessage(this.frame, [this.frame.buffer]);
          this.frame = next;
        }
      }
    }
    return true;
  }
}

registerProcessor("capture", CaptureProcessor);
