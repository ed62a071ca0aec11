// Markdown as preact nodes. The text comes from a model and is not trusted: nothing of it becomes HTML,
// images are not loaded, and links lead to web pages and mail only.
import { html, useState } from "./html.js";
import { lexer } from "./vendor/marked.js";

const LINK = /^(https?:|mailto:)/i;

// How the programs begin that small models write without marking them as code.
const BARE_CODE = /^(def |class |function |async |import |from \S+ import |#include|public |const |let |var |package |fn |SELECT )/;

export function Markdown({ text }) {
  if (BARE_CODE.test(text) && !text.includes("```")) return html`<div class="markdown"><${CodeBlock} text=${text} language="" /></div>`;
  return html`<div class="markdown">${blocks(lexer(text, { gfm: true, breaks: true }))}</div>`;
}

export function safeLink(href) {
  return LINK.test(href.trim()) ? href.trim() : null;
}

function blocks(tokens) {
  return tokens.map(block);
}

function block(token) {
  switch (token.type) {
    case "heading":
      return html`<p class="heading" role="heading" aria-level=${Math.min(token.depth + 2, 6)}>${inline(token)}</p>`;
    case "paragraph":
      return html`<p>${inline(token)}</p>`;
    case "code":
      return html`<${CodeBlock} text=${token.text} language=${(token.lang ?? "").split(/\s/)[0]} />`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens)}</blockquote>`;
    case "list": {
      const items = token.items.map((item) => html`<li>${task(item)}${blocks(item.tokens)}</li>`);
      return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table":
      return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
        <thead><tr>${token.header.map((cell) => html`<th scope="col">${inline(cell)}</th>`)}</tr></thead>
        <tbody>${token.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell)}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    case "hr":
      return html`<hr />`;
    case "space":
    case "def":
    case "checkbox":
      return null;
    case "text":
      return token.tokens ? inline(token) : token.text;
    default:
      return token.raw;
  }
}

function task(item) {
  return item.task ? html`<span class="task" aria-label=${item.checked ? "done" : "open"}>${item.checked ? "☑" : "☐"} </span>` : null;
}

function inline(token) {
  return token.tokens ? token.tokens.map(span) : token.text;
}

function span(token) {
  switch (token.type) {
    case "strong":
      return html`<strong>${inline(token)}</strong>`;
    case "em":
      return html`<em>${inline(token)}</em>`;
    case "del":
      return html`<del>${inline(token)}</del>`;
    case "codespan":
      return html`<code>${token.text}</code>`;
    case "br":
      return html`<br />`;
    case "link": {
      const href = safeLink(token.href);
      return href ? html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${inline(token)}</a>` : token.raw;
    }
    case "image": {
      const href = safeLink(token.href);
      return href ? html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${token.text || href}</a>` : token.raw;
    }
    case "escape":
      return token.text;
    case "checkbox":
      return null;
    case "text":
      return token.tokens ? inline(token) : token.text;
    default:
      return token.raw;
  }
}

export function CopyButton({ text, label }) {
  const [said, say] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("Not allowed here");
    }
    setTimeout(() => say(""), 2000);
  };
  return html`<button type="button" class="quiet" onClick=${copy} title=${label}>${said || "Copy"}</button>`;
}

function CodeBlock({ text, language }) {
  return html`<div class="code">
    <div class="code-head"><span>${language || "text"}</span><${CopyButton} text=${text} label="Copy the code" /></div>
    <pre tabindex="0" aria-label=${`Code, ${language || "text"}`}><code>${text}</code></pre>
  </div>`;
}
