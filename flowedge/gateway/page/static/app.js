// The page: its three views, and what they share.
import { html, render, useEffect, useRef, useState } from "./html.js";
import { activity, savedKey, saveKey } from "./api.js";
import { ChatView } from "./chat.js";
import { ClusterView, statusText } from "./cluster.js";
import { Conversations } from "./conversations.js";
import { PipelineView } from "./live.js";
import { KeyDialog } from "./settings.js";
import { WatchView } from "./watch.js";

const VIEWS = [["chat", "Chat"], ["cluster", "Cluster"], ["live", "Live"]];
const THEME = "flowedge.theme";
const THEMES = { "": "System", light: "Light", dark: "Dark" };

function viewOfHash() {
  const asked = location.hash.slice(1);
  return VIEWS.some(([name]) => name === asked) ? asked : "chat";
}

function useView() {
  const [view, setView] = useState(viewOfHash());
  useEffect(() => {
    const changed = () => {
      setView(viewOfHash());
      document.getElementById("main")?.focus();
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return view;
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    if (theme) localStorage.setItem(THEME, theme);
    else localStorage.removeItem(THEME);
  }, [theme]);
  return [theme, setTheme];
}

/** The cluster and the pipelines' last seconds, for as long as the page is open and in sight. */
function useActivity(key) {
  const [cluster, setCluster] = useState(null);
  const [problem, setProblem] = useState("");
  const views = useRef(new Map());
  const [, tell] = useState(0);
  useEffect(() => {
    let ended = false;
    let controller = null;
    const follow = async () => {
      let wait = 500;
      while (!ended) {
        if (document.hidden) {
          await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
          continue;
        }
        controller = new AbortController();
        try {
          for await (const [kind, value] of activity(controller.signal)) {
            wait = 500;
            setProblem("");
            if (kind === "cluster") setCluster(value);
            else if (kind === "unwatched") {
              if (views.current.delete(value.pipeline)) tell((count) => count + 1);
            }
            else if (kind === "activity") {
              let view = views.current.get(value.pipeline);
              if (!view) views.current.set(value.pipeline, (view = new PipelineView(value.pipeline)));
              const first = !view.state;
              view.apply(value, performance.now() / 1000);
              if (first && view.state) tell((count) => count + 1);
            }
          }
        } catch (error) {
          views.current.clear(); // their figures would stand still
          if (ended || error.name === "AbortError") continue;
          setProblem(error.message);
        }
        await new Promise((resolve) => setTimeout(resolve, wait));
        wait = Math.min(wait * 2, 8000);
      }
    };
    const hidden = () => document.hidden && controller?.abort();
    document.addEventListener("visibilitychange", hidden);
    follow();
    return () => {
      ended = true;
      controller?.abort();
      document.removeEventListener("visibilitychange", hidden);
    };
  }, [key]);
  return { cluster, views: views.current, problem };
}

function App() {
  const view = useView();
  const [theme, setTheme] = useTheme();
  const [key, setKey] = useState(savedKey());
  const [asking, setAsking] = useState(null); // why a key is asked for; null while it is not
  const { cluster, views, problem } = useActivity(key);
  const [conversations] = useState(() => new Conversations());
  const [current, setCurrent] = useState(() => conversations.list[0]?.id ?? null);
  const [said, announce] = useState("");
  const [pipeline, choosePipeline] = useState(null);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <h1><img src="static/icon.svg" alt="" width="26" height="26" />FlowEdge</h1>
      <nav aria-label="Views"><ul>${VIEWS.map(([name, text]) => html`<li><a href=${`#${name}`} aria-current=${view === name ? "page" : undefined}>${text}</a></li>`)}</ul></nav>
      <div class="top-tools">
        <${Speed} cluster=${cluster} views=${views} />
        ${cluster?.key_required && html`<button type="button" onClick=${() => setAsking("")}>${cluster.may_chat ? "Key ✓" : "Key"}</button>`}
        <label><span class="hidden">Colours</span><select id="theme" value=${theme} onChange=${(event) => setTheme(event.target.value)}>
          ${Object.entries(THEMES).map(([name, text]) => html`<option value=${name}>${text}</option>`)}</select></label>
      </div>
    </header>
    ${problem && html`<p class="banner" role="status">${problem} The page tries again by itself.</p>`}
    <main id="main" tabindex="-1" data-view=${view}>
      <div hidden=${view !== "chat"} class="fill"><${ChatView} kept=${conversations} current=${current} setCurrent=${setCurrent}
        cluster=${cluster} askKey=${setAsking} announce=${announce} /></div>
      ${view === "cluster" && html`<${ClusterView} cluster=${cluster} views=${views} />`}
      ${view === "live" && html`<${WatchView} cluster=${cluster} views=${views} chosen=${pipeline} choose=${choosePipeline} dark=${theme} />`}
    </main>
    <div class="hidden" role="status" aria-live="polite">${said}</div>
    ${asking !== null && html`<${KeyDialog} reason=${asking} saved=${key} close=${() => setAsking(null)}
      store=${(given) => { saveKey(given); setKey(given); }} />`}`;
}

/** The speed of all pipelines together, in the header. */
function Speed({ cluster, views }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const shown = (cluster?.pipelines ?? []).map((pipeline) => views.get(pipeline.name)?.state).filter(Boolean);
  const speed = shown.reduce((sum, state) => sum + state.tokens_per_s, 0);
  const ready = cluster?.pipelines.some((pipeline) => pipeline.ready);
  const [first] = cluster?.pipelines ?? [];
  const waiting = cluster?.opening ? "being set up" : first ? statusText(first) : "not ready";
  return html`<span class="speed"><span class=${`dot ${ready ? "good" : "bad"}`} aria-hidden="true"></span>
    ${ready ? (speed > 0 ? `${speed.toFixed(0)} tokens/s` : "ready") : cluster ? waiting : "connecting"}</span>`;
}

render(html`<${App} />`, document.getElementById("app"));
