// The one place where the microphone's rate becomes the protocol's: a polyphase windowed-sinc filter.
//
// Sample by sample, so that it adds no more than half its length (0.7 ms at 48 kHz) and allocates
// nothing while it runs.

const ZERO_CROSSINGS = 16; // each side of the kernel, at the lower of the two rates
const PASSED_BAND = 0.92; // of the lower rate's half: what lies above is faded out

export class Resampler {
  constructor(fromHz, toHz) {
    const common = greatestCommonDivisor(fromHz, toHz);
    this.up = toHz / common;
    this.down = fromHz / common;
    const half = Math.ceil(ZERO_CROSSINGS * Math.max(1, fromHz / toHz));
    this.length = 2 * half;
    this.kernels = Array.from({ length: this.up }, (_, phase) =>
      kernel(half, phase / this.up, PASSED_BAND * Math.min(1, toHz / fromHz)),
    );
    this.history = new Float32Array(2 * this.length); // each sample twice: windows are contiguous
    this.at = 0;
    this.phase = 0; // of the next output, in 1 / up of an input sample after the newest
  }

  // Takes one sample, calls `emit` for each sample that is due.
  push(sample, emit) {
    this.at = this.at === 0 ? this.length - 1 : this.at - 1; // the newest comes first
    this.history[this.at] = this.history[this.at + this.length] = sample;
    for (; this.phase < this.up; this.phase += this.down) {
      const weights = this.kernels[this.phase];
      let sum = 0;
      for (let age = 0; age < this.length; age++) {
        sum += weights[age] * this.history[this.at + age];
      }
      emit(sum);
    }
    this.phase -= this.up;
  }
}

// Weights by age of the sample; `band` is the share of the input's half rate that passes.
function kernel(half, offset, band) {
  const weights = new Float32Array(2 * half);
  let total = 0;
  for (let age = 0; age < weights.length; age++) {
    const distance = age + offset - half;
    const x = Math.PI * distance * band;
    const window = Math.abs(distance) < half ? Math.cos((Math.PI * distance) / (2 * half)) ** 2 : 0;
    weights[age] = (x === 0 ? 1 : Math.sin(x) / x) * window;
    total += weights[age];
  }
  return weights.map((weight) => weight / total);
}

function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
