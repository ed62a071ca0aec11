// Dialogs: how to answer, and the API key.
import { html, useEffect, useRef, useState } from "./html.js";
import { DEFAULTS } from "./conversations.js";

function Dialog({ title, close, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${close}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
  </dialog>`;
}

const NUMBERS = [
  ["temperature", "Temperature", "0 always takes the likeliest token", 0, 2, 0.1],
  ["top_p", "Top-p", "the likeliest tokens of this share", 0, 1, 0.05],
  ["max_tokens", "Most tokens", "of an answer", 1, 1000000, 1],
  ["seed", "Seed", "the same seed gives the same answer", 0, 4294967295, 1],
];

export function SettingsDialog({ conversation, models, close, store }) {
  const [values, setValues] = useState({ ...DEFAULTS, ...conversation?.settings });
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    store(values);
    event.target.closest("dialog").close();
  };
  return html`<${Dialog} title="Settings of this conversation" close=${close}>
    <form method="dialog" onSubmit=${submit}>
      <label>Model
        <select value=${values.model} onChange=${set("model")}>
          <option value="">${models[0]?.id ?? "none is ready"} (default)</option>
          ${models.slice(1).map((model) => html`<option value=${model.id}>${model.id}${model.ready ? "" : " (not ready)"}</option>`)}
        </select></label>
      <label>System prompt
        <textarea rows="3" value=${values.system} onInput=${set("system")}></textarea></label>
      <div class="fields">${NUMBERS.map(([name, label, hint, min, max, step]) => html`<label>${label}
        <input type="number" inputmode="decimal" value=${values[name]} min=${min} max=${max} step=${step} placeholder="default" aria-describedby=${`hint-${name}`} onInput=${set(name)} />
        <span class="hint" id=${`hint-${name}`}>${hint}</span></label>`)}</div>
      <div class="dialog-actions"><button type="button" onClick=${(event) => event.target.closest("dialog").close()}>Cancel</button>
        <button type="submit" class="primary">Save</button></div>
    </form>
  <//>`;
}

export function KeyDialog({ reason, saved, close, store }) {
  const [key, setKey] = useState(saved);
  const submit = (event) => {
    event.preventDefault();
    store(key.trim());
    event.target.closest("dialog").close();
  };
  return html`<${Dialog} title="API key" close=${close}>
    <form method="dialog" onSubmit=${submit}>
      ${reason && html`<p class="error">${reason}</p>`}
      <p>Who runs the gateway makes keys with <code>flowedge serve keys add NAME</code>. The key stays in this tab and is forgotten when it is closed.</p>
      <label>Key <input type="password" autocomplete="off" spellcheck="false" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
      <div class="dialog-actions"><button type="button" onClick=${(event) => event.target.closest("dialog").close()}>Cancel</button>
        <button type="submit" class="primary">Use this key</button></div>
    </form>
  <//>`;
}
