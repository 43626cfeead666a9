// Runs on the audio thread: the microphone's quanta in, 20 ms frames of PCM16 at 24 kHz out by transfer.
//
// `process` allocates nothing: frames are taken from a pool and come back through the port once they
// are sent. If the page does not return them in time, frames are dropped.

import { Resampler } from "./resampler.js";

const RATE_HZ = 24000;
const FRAME_SAMPLES = 480; // 20 ms
const POOL_FRAMES = 50; // one second
const INT16_MAX = 32767;

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, RATE_HZ);
    this.pool = Array.from({ length: POOL_FRAMES }, () => new Int16Array(FRAME_SAMPLES));
    this.frame = this.pool.pop();
    this.length = 0;
    this.emit = (sample) => this.take(sample);
    this.port.onmessage = ({ data }) => this.pool.push(data);
  }

  process([[channel]]) {
    if (channel) { // else the microphone is not connected yet
      for (let i = 0; i < channel.length; i++) {
        this.resampler.push(channel[i], this.emit);
      }
    }
    return true;
  }

  take(sample) {
    this.frame[this.length++] = Math.round(Math.max(-1, Math.min(1, sample)) * INT16_MAX);
    if (this.length < FRAME_SAMPLES) {
      return;
    }
    this.length = 0;
    const next = this.pool.pop();
    if (next) {
      this.port.postMessage(this.frame, [this.frame.buffer]);
      this.frame = next;
    }
  }
}

registerProcessor("capture", CaptureProcessor);
