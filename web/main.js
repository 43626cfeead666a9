// Wiring: socket, microphone, player and view know nothing of each other; this file does.

import { Connection } from "./connection.js";
import { Microphone, MicrophoneError } from "./microphone.js";
import { Player } from "./player.js";
import * as protocol from "./protocol.js";
import { View } from "./view.js";

const TYPING_EVERY_MS = 80;
const ERROR_SHOWN_MS = 10000;

const element = (id) => document.getElementById(id);
const view = new View();
const connection = new Connection(socketUrl());

// Browsers let it run only after a click or a key.
const context = new AudioContext({ sampleRate: protocol.SAMPLE_RATE_HZ, latencyHint: "interactive" });
const player = new Player(context, (responseId, playedMs) =>
  connection.send(protocol.playbackReported(responseId, playedMs)),
);
const microphone = new Microphone(sendFrame, () => {
  showMicrophone();
  view.showNotice("The microphone was disconnected.");
});

function socketUrl() {
  const url = new URL("v1/realtime", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const token = new URLSearchParams(location.search).get("token");
  if (token) {
    url.searchParams.set("token", token);
  }
  return url;
}

// ---- from the server

const handlers = {
  "session.created": () => connection.send(protocol.sessionUpdate({ speaks: element("voice").checked })),
  "input_audio_buffer.speech_started": (event) => view.speechStarted(event.item_id),
  "forespeak.transcript.changed": (event) =>
    view.transcriptChanged(event.item_id, event.stable, event.tentative),
  "forespeak.draft.changed": (event) => view.draftChanged(event.item_id, event.text),
  "conversation.item.input_audio_transcription.completed": (event) =>
    view.transcriptFinal(event.item_id, event.transcript),
  "conversation.item.added": ({ item, previous_item_id: previous }) => {
    if (item.role === "assistant") {
      view.replyStarted(item.id, previous);
    } else if (item.content[0]?.type === "input_text") {
      view.typed(item.id, item.content[0].text);
    }
  },
  "response.output_audio_transcript.delta": (event) => view.replyText(event.item_id, event.delta),
  "response.output_text.delta": (event) => view.replyText(event.item_id, event.delta),
  "response.output_audio.delta": (event) =>
    player.push(event.response_id, event.item_id, protocol.decodePcm16(event.delta)),
  "response.done": ({ response }) => {
    for (const item of response.output) {
      view.replyEnded(item.id, response.status, response.status_details?.reason);
    }
  },
  "output_audio_buffer.cleared": stopPlaying,
  "conversation.item.truncated": (event) => view.replyCut(event.item_id, event.audio_end_ms),
  "forespeak.turn.measured": (event) => view.measured(event.item_id, event.metrics),
  error: ({ error }) => view.showNotice(error.message, ERROR_SHOWN_MS),
};

connection.addEventListener("message", ({ detail: event }) => handlers[event.type]?.(event));

connection.addEventListener("state", ({ detail: { state, text } }) => {
  view.setStatus(state, text);
  element("microphone").disabled = state !== "ready" && !microphone.isOn;
  element("send").disabled = state !== "ready";
  if (state === "lost") {
    player.stop(); // the session is gone, and with it the reply
  }
});

// The caller cut in: silence at once, and tell the server what was heard.
function stopPlaying() {
  const cut = player.stop();
  if (cut) {
    connection.send(protocol.itemTruncate(cut.itemId, cut.playedMs));
  }
}

// ---- from the caller

function sendFrame(frame, level) {
  connection.send(protocol.audioAppend(frame), { mayDrop: true });
  element("level").style.setProperty("--level", String(1 + level * 0.6));
}

function showMicrophone() {
  element("microphone").setAttribute("aria-pressed", String(microphone.isOn));
}

element("microphone").addEventListener("click", async () => {
  if (microphone.isOn) {
    microphone.stop();
    showMicrophone();
    return;
  }
  element("microphone").disabled = true;
  try {
    await context.resume();
    await microphone.start();
    view.hideNotice();
  } catch (error) {
    if (!(error instanceof MicrophoneError)) {
      throw error;
    }
    view.showNotice(error.message);
  } finally {
    element("microphone").disabled = !connection.isReady && !microphone.isOn;
    showMicrophone();
  }
});

element("voice").addEventListener("change", ({ target }) => {
  connection.send(protocol.sessionUpdate({ speaks: target.checked }));
  if (!target.checked) {
    stopPlaying();
  }
});

let typingTimer = 0;

element("text").addEventListener("input", () => {
  typingTimer ||= setTimeout(() => {
    typingTimer = 0;
    const text = element("text").value;
    if (connection.send(protocol.textTyped(text, false))) {
      view.typing(text);
    }
  }, TYPING_EVERY_MS);
});

element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = element("text").value.trim();
  if (!text) {
    return;
  }
  clearTimeout(typingTimer);
  typingTimer = 0;
  void context.resume();
  if (connection.send(protocol.textTyped(text, true))) {
    view.typing(text);
    element("text").value = "";
  }
});

connection.open();
