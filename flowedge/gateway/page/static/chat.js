// The chat: conversations, answers as they come, and what one can do with them.
import { html, useEffect, useRef, useState } from "./html.js";
import { GatewayError, chat } from "./api.js";
import { STORE, create, newId, requestOf, statisticsText, titleOf } from "./conversations.js";
import { CopyButton, Markdown } from "./markdown.js";
import { SettingsDialog } from "./settings.js";

const DRAW_MS = 60; // between two pictures of an answer
const FOLLOW_PX = 80; // from the end, within which the view follows the answer

export function ChatView({ kept, current, setCurrent, cluster, askKey, announce }) {
  const [running, setRunning] = useState(null); // {id, controller}
  const [editing, setEditing] = useState(null); // index of the question that is edited
  const [draft, setDraft] = useState("");
  const [listOpen, setListOpen] = useState(false);
  const [settingsOpen, setSettingsOpen] = useState(false);
  const [, redraw] = useState(0);
  const field = useRef(null);
  const models = cluster?.models ?? [];
  const conversations = kept.list;
  const conversation = kept.find(current);
  const messages = conversation?.messages ?? [];
  const answering = running !== null && running.id === conversation?.id;
  const locked = cluster?.key_required && !cluster?.may_chat;
  const model = conversation?.settings?.model || models[0]?.id || "";
  const isBase = models.some((each) => each.id === model && each.no_chat_template);
  const shown = () => redraw((count) => count + 1);

  useEffect(() => {
    const changed = (event) => {
      if (event.key !== STORE && event.key !== null) return; // of another tab
      kept.read();
      shown();
    };
    addEventListener("storage", changed);
    return () => removeEventListener("storage", changed);
  }, []);

  const change = (id, update, { first = false } = {}) => {
    kept.change(id, update);
    kept.store(id, { first });
    shown();
  };

  /** Have a conversation answered; goesOn: whether its last message is the beginning of the answer. */
  const answer = async (id, { goesOn = false } = {}) => {
    const controller = new AbortController();
    setRunning({ id, controller });
    kept.running = id;
    const asked = kept.find(id);
    const begun = goesOn ? asked.messages.at(-1) : null;
    const reply = { id: begun?.id ?? newId(), role: "assistant", content: begun?.content ?? "", reasoning: begun?.reasoning ?? "" };
    const show = () => {
      kept.change(id, (each) => ({ ...each, messages: withReply(each.messages, asked.messages.at(-1)?.id, { ...reply }) }));
      shown();
    };
    show();
    announce("The answer begins.");
    let drawing = 0; // the timer of the next picture
    let usage = null;
    let began = 0;
    try {
      for await (const part of chat(requestOf(asked, models[0]?.id ?? ""), controller.signal)) {
        if (part.content || part.reasoning) began ||= performance.now();
        if (part.content) reply.content += part.content;
        if (part.reasoning) reply.reasoning += part.reasoning;
        if (part.finish) reply.finish = part.finish;
        if (part.usage) usage = part.usage;
        if (part.lost && part.lost !== reply.lost) {
          reply.lost = part.lost;
          announce(`Device ${part.lost} was lost; the answer goes on.`);
        } else if (part.content || part.reasoning || part.finish) delete reply.lost;
        drawing ||= setTimeout(() => {
          drawing = 0;
          show();
        }, DRAW_MS);
      }
      announce("The answer is complete.");
    } catch (error) {
      if (error.name === "AbortError") {
        reply.finish = "stopped";
        announce("The answer was stopped.");
      } else {
        reply.error = errorText(error);
        if (error instanceof GatewayError && error.status === 401) askKey(error.message);
        announce(`The answer failed: ${reply.error}`);
      }
    }
    clearTimeout(drawing);
    delete reply.lost;
    if (usage) reply.statistics = statisticsText(usage, began ? (performance.now() - began) / 1000 : 0);
    show();
    kept.running = null;
    if (kept.find(id)) kept.store(id);
    shown();
    setRunning(null);
  };

  const send = () => {
    const text = draft.trim();
    if (!text || running || locked) return;
    let id = conversation?.id;
    if (!id) {
      const made = create();
      id = made.id;
      kept.add(made);
      setCurrent(id);
    }
    const before = editing === null ? undefined : editing;
    const question = { id: newId(), role: "user", content: text };
    change(id, (each) => ({ ...each, messages: [...each.messages.slice(0, before), question] }), { first: true });
    setDraft("");
    setEditing(null);
    answer(id);
  };

  const regenerate = () => {
    change(conversation.id, (each) => ({ ...each, messages: upToQuestion(each.messages) }));
    answer(conversation.id);
  };

  const tryAgain = () => {
    if (messages.at(-1)?.content) answer(conversation.id, { goesOn: true });
    else regenerate();
  };

  const edit = (place) => {
    setEditing(place);
    setDraft(messages[place].content);
    field.current?.focus();
  };

  const choose = (id) => {
    setCurrent(id);
    setListOpen(false);
    setEditing(null);
    setDraft("");
    field.current?.focus();
  };

  const remove = (id) => {
    if (running?.id === id) {
      running.controller.abort();
      kept.running = null;
    }
    kept.remove(id);
    shown();
    if (id === current) setCurrent(null);
    announce("The conversation was deleted.");
  };

  return html`<div class=${`chat${listOpen ? " list-open" : ""}`}>
    <${ConversationList} conversations=${conversations} current=${current} choose=${choose} remove=${remove}
      rename=${(id, title) => change(id, (each) => ({ ...each, title }))} />
    <div class="talk">
      <div class="talk-head">
        <button type="button" class="list-button" aria-expanded=${listOpen} onClick=${() => setListOpen(!listOpen)}>Conversations</button>
        <h2>${conversation ? titleOf(conversation) : "Chat"} ${model && html`<span class="hint model">${model}</span>`}</h2>
        <button type="button" onClick=${() => setSettingsOpen(true)} disabled=${answering}>Settings</button>
      </div>
      ${isBase && html`<p class="hint base-model" role="note">This model has no chat template: it is a base model, which goes on with a text as it stands.</p>`}
      <${Messages} opening=${Boolean(cluster?.opening)} conversation=${conversation} answering=${answering} edit=${edit} regenerate=${regenerate} tryAgain=${tryAgain} busy=${running !== null}
        locked=${locked} askKey=${askKey} model=${model} suggest=${(text) => { setDraft(text); field.current?.focus(); }} />
      <${Composer} field=${field} draft=${draft} setDraft=${setDraft} send=${send} editing=${editing !== null}
        cancelEdit=${() => { setEditing(null); setDraft(""); }} answering=${answering} busy=${running !== null} locked=${locked}
        stop=${() => running?.controller.abort()} />
    </div>
    ${settingsOpen && html`<${SettingsDialog} conversation=${conversation} models=${models} close=${() => setSettingsOpen(false)}
      store=${(settings) => {
        if (conversation) change(conversation.id, (each) => ({ ...each, settings }));
        else {
          const made = create(settings);
          kept.add(made);
          kept.store(made.id);
          setCurrent(made.id);
        }
      }} />`}
  </div>`;
}

/** Messages with the answer to the message of this id, which other tabs may have put more behind. */
export function withReply(messages, askedId, reply) {
  const known = messages.findIndex((message) => message.id === reply.id);
  if (known >= 0) return messages.map((message, place) => (place === known ? reply : message));
  const asked = messages.findIndex((message) => message.id === askedId);
  const place = asked >= 0 ? asked + 1 : messages.length;
  return [...messages.slice(0, place), reply, ...messages.slice(place)];
}

/** The messages before the last answer. */
export function upToQuestion(messages) {
  const last = messages.findLastIndex((message) => message.role === "user");
  return messages.slice(0, last + 1);
}

export function errorText(error) {
  if (!(error instanceof GatewayError)) return `The answer cannot be read: ${error.message}`;
  const again = error.retryAfter ? ` Try again in about ${Math.ceil(error.retryAfter)} s.` : "";
  return `${error.message}${again}`;
}

function ConversationList({ conversations, current, choose, remove, rename }) {
  const [renaming, setRenaming] = useState(null);
  return html`<nav class="conversations" aria-label="Conversations">
    <button type="button" class="primary wide" onClick=${() => choose(null)}>New conversation</button>
    <ul>${conversations.map((each) => html`<li key=${each.id} class=${each.id === current ? "current" : ""}>
      ${renaming === each.id
        ? html`<input class="rename" aria-label="Name of the conversation" value=${titleOf(each)} ref=${(element) => element?.focus()}
            onKeyDown=${(event) => {
              if (event.key === "Enter") event.target.blur();
              if (event.key === "Escape") setRenaming(null);
            }}
            onBlur=${(event) => {
              if (renaming === each.id) rename(each.id, event.target.value.trim());
              setRenaming(null);
            }} />`
        : html`<button type="button" class="title" aria-current=${each.id === current ? "true" : undefined} onClick=${() => choose(each.id)}>${titleOf(each)}</button>
            <button type="button" class="quiet" aria-label=${`Rename ${titleOf(each)}`} title="Rename" onClick=${() => setRenaming(each.id)}>✎</button>
            <button type="button" class="quiet" aria-label=${`Delete ${titleOf(each)}`} title="Delete" onClick=${() => remove(each.id)}>✕</button>`}
    </li>`)}</ul>
    <p class="hint">Conversations are kept in this browser only.</p>
  </nav>`;
}

const SUGGESTIONS = ["Explain speculative decoding in two sentences.", "Write a haiku about small computers.", "What is a pipeline?"];
// What the bundled model can do.
const BUNDLED = ["Write a Python function that counts the vowels in a text.", "Write a JavaScript function that reverses a string.", "Write a function in Python that returns the largest number of a list."];

function Messages({ opening, conversation, answering, busy, edit, regenerate, tryAgain, locked, askKey, suggest, model }) {
  const frame = useRef(null);
  const follows = useRef(true);
  const messages = conversation?.messages ?? [];
  useEffect(() => {
    if (follows.current && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [conversation]);
  useEffect(() => {
    follows.current = true;
  }, [conversation?.id, messages.length]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = frame.current;
    follows.current = scrollHeight - scrollTop - clientHeight < FOLLOW_PX;
  };
  const lastQuestion = messages.findLastIndex((message) => message.role === "user");
  return html`<div class="messages" ref=${frame} onScroll=${scrolled} role="log" aria-live="off" aria-label="Messages" tabindex="0">
    ${!messages.length && html`<div class="welcome">
      <p class="welcome-title">What would you like to know?</p>
      ${opening && html`<p class="hint" role="status">The pipeline is being set up; questions are answered when it is ready. <a href="#cluster">How far it is</a></p>`}
      ${locked
        ? html`<p>To chat, this gateway asks for an API key. Everybody may watch the cluster.</p>
            <button type="button" class="primary" onClick=${() => askKey("")}>Enter an API key</button>`
        : html`<div class="suggestions">${(model === "bundled" ? BUNDLED : SUGGESTIONS).map((text) => html`<button type="button" onClick=${() => suggest(text)}>${text}</button>`)}</div>`}
    </div>`}
    ${messages.map((message, place) => {
      const last = place === messages.length - 1;
      return message.role === "user"
        ? html`<article class="message user" key=${place} aria-label="You"><div class="bubble">${message.content}</div>
            ${place === lastQuestion && !busy && !locked && html`<div class="actions"><button type="button" class="quiet" onClick=${() => edit(place)}>Edit</button>
              ${last && html`<button type="button" class="quiet" onClick=${regenerate}>Answer</button>`}</div>`}</article>`
        : html`<${Answer} key=${place} message=${message} live=${last && answering} regenerate=${last && !busy && !locked ? regenerate : null} tryAgain=${tryAgain} />`;
    })}
  </div>`;
}

function Answer({ message, live, regenerate, tryAgain }) {
  return html`<article class="message assistant" aria-label="Answer" aria-busy=${live}>
    ${message.reasoning && html`<details class="reasoning" open=${live && !message.content}><summary>Reasoning</summary><${Markdown} text=${message.reasoning} /></details>`}
    ${message.content && html`<${Markdown} text=${message.content} />`}
    ${live && message.lost && html`<p class="waiting lost">Device ${message.lost} was lost, the answer goes on …</p>`}
    ${live && !message.lost && !message.content && !message.reasoning && html`<p class="waiting">Waiting for the first token …</p>`}
    ${message.error && html`<p class="error" role="alert">${message.error}</p>`}
    ${!live && html`<div class="actions">
      ${regenerate && message.error && html`<button type="button" class="quiet" onClick=${tryAgain}>Try again</button>`}
      ${regenerate && (!message.error || message.content) && html`<button type="button" class="quiet" onClick=${regenerate}>Regenerate</button>`}
      ${message.content && html`<${CopyButton} text=${message.content} label="Copy the answer" />`}
      <span class="hint statistics">${[message.finish === "stopped" ? "stopped" : message.finish === "length" ? "ended at the most tokens" : "", message.statistics].filter(Boolean).join(" · ")}</span>
    </div>`}
  </article>`;
}

function Composer({ field, draft, setDraft, send, editing, cancelEdit, answering, busy, locked, stop }) {
  const [hasFiles, setHasFiles] = useState(false); // whether files were pasted or dropped, which no model reads
  useEffect(() => {
    const element = field.current;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight + 2, 220)}px`;
  }, [draft]);
  const key = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && answering) stop();
    if (event.key === "Escape" && editing) cancelEdit();
  };
  const given = (event, data) => {
    if (!data?.files.length) return;
    event.preventDefault();
    setHasFiles(true);
  };
  return html`<form class="composer" aria-label="Question" onSubmit=${(event) => { event.preventDefault(); send(); }}
    onPaste=${(event) => given(event, event.clipboardData)} onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => given(event, event.dataTransfer)}>
    ${hasFiles && html`<p class="hint" role="alert">Images and other files are not supported: models read text alone here. Paste text instead.</p>`}
    ${editing && html`<p class="hint">You are editing your last question. <button type="button" class="quiet" onClick=${cancelEdit}>Leave it as it was</button></p>`}
    <div class="composer-box">
      <label class="hidden" for="question">Question</label>
      <textarea id="question" ref=${field} rows="1" placeholder=${locked ? "An API key is needed to chat" : "Ask something"} value=${draft} disabled=${locked}
        onInput=${(event) => { setDraft(event.target.value); setHasFiles(false); }} onKeyDown=${key}></textarea>
      ${answering
        ? html`<button type="button" class="primary" id="stop" onClick=${stop}>Stop</button>`
        : html`<button type="submit" class="primary" id="send" disabled=${busy || locked || !draft.trim()}>Send</button>`}
    </div>
  </form>`;
}
