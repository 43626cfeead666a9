// Message shapes of /v1/realtime that this page uses (docs/protocol.md), and audio as they carry it.

export const SAMPLE_RATE_HZ = 24000; // of audio/pcm, both ways
const INT16_SCALE = 32768;

export const sessionUpdate = ({ speaks }) => ({
  type: "session.update",
  session: {
    type: "realtime",
    output_modalities: [speaks ? "audio" : "text"],
    forespeak: { partials: true, draft: true, metrics: true },
  },
});

export const audioAppend = (frame) => ({
  type: "input_audio_buffer.append",
  audio: bytesToBase64(new Uint8Array(frame.buffer, frame.byteOffset, frame.byteLength)),
});

export const textTyped = (text, final) => ({ type: "forespeak.text.typed", text, final });

export const playbackReported = (responseId, playedMs) => ({
  type: "forespeak.playback.reported",
  response_id: responseId,
  played_ms: Math.round(playedMs),
});

export const itemTruncate = (itemId, playedMs) => ({
  type: "conversation.item.truncate",
  item_id: itemId,
  content_index: 0,
  audio_end_ms: Math.round(playedMs),
});

// Base64 of little-endian PCM16 -> Float32Array in [-1, 1).
export function decodePcm16(base64) {
  const binary = atob(base64);
  const samples = new Float32Array(binary.length >> 1);
  for (let i = 0; i < samples.length; i++) {
    const unsigned = binary.charCodeAt(2 * i) | (binary.charCodeAt(2 * i + 1) << 8);
    samples[i] = ((unsigned << 16) >> 16) / INT16_SCALE; // the shifts extend the sign
  }
  return samples;
}

function bytesToBase64(bytes) {
  return btoa(String.fromCharCode(...bytes)); // a frame is 960 bytes: far below any argument limit
}
