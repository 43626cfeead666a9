// Gapless playback with an instant stop, and an account of what was really heard.
//
// Chunks are scheduled back to back on the context's clock: no gap, no overlap, and no thread of ours
// between two chunks. `playedMs` counts only what has left the loudspeaker.

import { SAMPLE_RATE_HZ } from "./protocol.js";

const START_DELAY_S = 0.02; // the first chunk, and after a gap: time for the next to arrive
const REPORT_EVERY_MS = 200;

export class Player {
  #context;
  #output;
  #sources = new Set();
  #endsAt = 0; // context time up to which audio is scheduled
  #reply = null; // {responseId, itemId, chunks: [{startsAt, endsAt}]}
  #timer = 0;

  // `onProgress(responseId, playedMs)` while a reply plays and once when all that came was played.
  constructor(context, onProgress) {
    this.#context = context;
    this.#output = context.createGain();
    this.#output.connect(context.destination);
    this.onProgress = onProgress;
  }

  get isPlaying() {
    return this.#sources.size > 0;
  }

  // A chunk of Float32Array samples at 24 kHz. Chunks of a new response follow those of the last.
  push(responseId, itemId, samples) {
    if (this.#reply?.responseId !== responseId) {
      this.#reply = { responseId, itemId, chunks: [] };
    }
    const buffer = this.#context.createBuffer(1, samples.length, SAMPLE_RATE_HZ);
    buffer.copyToChannel(samples, 0);
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#output);
    const startsAt = Math.max(this.#endsAt, this.#context.currentTime + START_DELAY_S);
    this.#endsAt = startsAt + buffer.duration;
    this.#reply.chunks.push({ startsAt, endsAt: this.#endsAt });
    this.#sources.add(source);
    source.onended = () => {
      this.#sources.delete(source);
      if (!this.isPlaying) {
        this.#stopReporting();
      }
    };
    source.start(startsAt);
    this.#startReporting();
  }

  // Silence at once. Returns {itemId, playedMs} of the reply that was cut off, or null.
  stop() {
    if (!this.isPlaying) {
      return null;
    }
    const cut = { itemId: this.#reply.itemId, playedMs: this.playedMs() };
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
      source.disconnect();
    }
    this.#sources.clear();
    this.#endsAt = 0;
    this.#reply = null;
    clearInterval(this.#timer);
    this.#timer = 0;
    return cut;
  }

  // Of the newest reply, heard by now.
  playedMs() {
    const heardUntil = this.#context.currentTime - (this.#context.outputLatency || 0);
    let seconds = 0;
    for (const { startsAt, endsAt } of this.#reply?.chunks ?? []) {
      seconds += Math.max(0, Math.min(heardUntil, endsAt) - startsAt);
    }
    return seconds * 1000;
  }

  #startReporting() {
    this.#timer ||= setInterval(() => this.#report(), REPORT_EVERY_MS);
  }

  #stopReporting() {
    clearInterval(this.#timer);
    this.#timer = 0;
    // all of it is played but for what is still on its way to the loudspeaker
    setTimeout(() => this.#report(), (this.#context.outputLatency || 0) * 1000);
  }

  #report() {
    if (this.#reply) {
      this.onProgress(this.#reply.responseId, this.playedMs());
    }
  }
}
