// The page of a server, and the viewer of a trace from disk. Texts of others only ever become text nodes.
"use strict"
const given = JSON.parse(document.getElementById("given").textContent)
const ROOT = -1
const CRITIQUES = ["isrel", "issup", "isuse"]
const NAMES = { isrel: "IsRel", issup: "IsSup", isuse: "IsUse", retrieve: "Retrieve" }

// ---- the recorded tree under other settings; follows selfrag/decoding/rescore.py ----

function expectation(judgment) {
  const values = given.values[judgment.role]
  return Object.entries(judgment.distribution).reduce((sum, [name, p]) => sum + p * values[name], 0)
}

function likeliest(judgment) {
  return Object.entries(judgment.distribution).reduce((best, one) => (one[1] > best[1] ? one : best))[0]
}

function segmentScore(node, weights, undefinedPolicy) {
  let total = 0, present = 0, every = 0, missing = false
  for (const group of CRITIQUES) {
    const judgment = node.judgments[group]
    every += Math.abs(weights[group])
    if (judgment) {
      total += weights[group] * expectation(judgment)
      present += Math.abs(weights[group])
    } else missing = true
  }
  if (undefinedPolicy === "skip" && missing && present > 0) total *= every / present
  return node.likelihood + total
}

function pathScore(scores, accumulate) {
  const total = scores.reduce((a, b) => (accumulate === "product" ? a * b : a + b))
  return accumulate === "mean" ? total / scores.length : total
}

function retrievalScore(judgment, test) {
  const [yes, no] = given.retrieve.map(name => judgment.distribution[name])
  if (test === "all") return yes
  if (test === "yes_no") return yes + no > 0 ? yes / (yes + no) : 0
  const [a, b] = [yes, no].map(p => Math.min(0, Math.log(Math.max(p * judgment.coverage, 1e-38))))
  return a + b < 0 ? a / (a + b) : 0.5
}

function allowed(node, settings) {
  return CRITIQUES.every(group => {
    const judgment = node.judgments[group], wanted = settings.require[group], unwanted = settings.forbid[group]
    const label = judgment && likeliest(judgment)
    return !(wanted && !wanted.includes(label)) && !(unwanted && judgment && unwanted.includes(label))
  })
}

function action(trace, decision, settings, hasEvidence) {
  const judgment = decision.judgment
  if (!judgment || (decision.gates || []).some(([name]) => name !== "isrel") || settings.mode !== "adaptive") return decision.action
  if (hasEvidence && settings.segment_end === "retrieval") return "retrieve"
  const [yes, no, keep] = given.retrieve.map(name => judgment.distribution[name])
  if (hasEvidence && keep > yes && keep > no) return "continue"
  if (settings.threshold === null) return yes > no ? "retrieve" : "write"
  return retrievalScore(judgment, settings.retrieve_test) > settings.threshold ? "retrieve" : "write"
}

function replay(trace, settings) {
  const nodes = trace.nodes, decisions = new Map(trace.decisions.map(one => [one.after, one]))
  const children = new Map(nodes.map(node => [node.id, []])).set(ROOT, [])
  for (const node of nodes) children.get(node.parent).push(node)
  const bounded = node => node.status === "bounded" // given up: its scores are bounds, under the recorded weights
  const score = nodes.map(node => bounded(node) ? node.score : segmentScore(node, settings.weights, settings.undefined))
  const steps = [], keys = [], known = new Map(), evidence = new Map([[ROOT, false]])
  const path = nodes.map(node => {
    const before = node.parent === ROOT ? [] : steps[node.parent]
    steps.push(before.length && !node.text.trim() ? before : [...before, score[node.id]])
    const key = `${node.parent === ROOT ? ROOT : keys[node.parent]}:${node.text_ids}`
    if (!known.has(key)) known.set(key, known.size)
    keys.push(known.get(key))
    evidence.set(node.id, evidence.get(node.parent) || node.passage_id !== null)
    return bounded(node) ? node.path_score : pathScore(steps[node.id], settings.accumulate)
  })
  const over = id => id !== ROOT && (nodes[id].ended || nodes[id].depth === settings.max_segments)
  const fate = nodes.map(node => (node.status === "forbidden" ? "pruned" : node.status))
  const usable = node => !["duplicate", "empty", "failed", "bounded"].includes(node.status)
  // A critique that was not written is read only where a constraint asks for it: the record lacks it where the
  // constraint is new, and has it, with its weight, where the constraint is gone.
  const constrained = (decoding, group) => Boolean(decoding.require[group] || decoding.forbid[group])
  const fresh = CRITIQUES.filter(group => constrained(settings, group) && !constrained(trace.decoding, group))
  const gone = CRITIQUES.some(group => constrained(trace.decoding, group) && !constrained(settings, group))
  const finished = [], kept = new Set([ROOT])
  let exact = !gone && !trace.decoding.branch_and_bound
  function following(id) {
    const decision = decisions.get(id)
    if (!decision) { exact = false; return [] }
    const all = children.get(id), now = action(trace, decision, settings, evidence.get(id))
    if (now === decision.action || (now === "retrieve" && decision.action === "abstain")) return all
    const without = all.filter(node => node.branch === "none")
    if (now !== "write" || !without.length) { exact = false; return all }
    return without
  }
  for (let level = [ROOT]; level.length;) {
    let candidates = []
    for (const id of level) {
      if (!kept.has(id)) continue
      let next = []
      if (!over(id)) {
        const all = following(id), tried = all.filter(usable)
        const read = all.filter(node => usable(node) || node.status === "empty")
        if (read.some(node => fresh.some(group => !node.judgments[group]))) exact = false
        next = tried.filter(node => allowed(node, settings))
        for (const node of tried) if (!next.includes(node)) fate[node.id] = "forbidden"
      }
      if (id !== ROOT && !next.length) { finished.push(id); fate[id] = "finished" }
      candidates.push(...next.map(node => node.id))
    }
    candidates.sort((a, b) => a - b)
    const best = new Map()
    for (const id of candidates) {
      fate[id] = "pruned"
      const twin = `${keys[id]}:${over(id)}`
      if (!best.has(twin)) best.set(twin, id)
      else if (path[id] > path[best.get(twin)]) { fate[best.get(twin)] = "merged"; best.set(twin, id) }
      else fate[id] = "merged"
    }
    const left = candidates.filter(id => fate[id] !== "merged")
    const top = [...left].sort((a, b) => path[b] - path[a] || a - b).slice(0, settings.beam)
    for (const id of left) if (top.includes(id) || over(id)) { kept.add(id); fate[id] = "kept" }
    level = candidates
  }
  const winner = finished.reduce((a, b) => (a === null || path[b] > path[a] ? b : a), null)
  return { best: winner, exact, score, path, fate, settings, first: decisions.has(ROOT) ? following(ROOT) : [] }
}

function pathTo(trace, id) {
  const found = []
  for (let at = id; at !== null && at !== ROOT; at = trace.nodes[at].parent) found.unshift(trace.nodes[at])
  return found
}

function passageOf(trace, node) {
  if (node.passage_id === null) return null
  const shown = trace.decisions.find(one => one.after === node.parent)
  const own = shown ? shown.passages : []
  return node.passage_at !== undefined ? own[node.passage_at] : own.find(one => one.id === node.passage_id) || null
}

function segments(trace, id) {
  const found = []
  let text = "", cited = null
  for (const node of pathTo(trace, id)) {
    if (node.branch === "passage") {
      const relevance = node.judgments.isrel
      cited = relevance && likeliest(relevance) === "Irrelevant" ? null : passageOf(trace, node)
    }
    const body = node.text.replace(/ +$/, "").replace(found.length ? /^ +/ : /^\s+/, "")
    if (!body.trim()) continue
    const gap = !text || /\s$/.test(text) || /^[\s.,;:!?)\]}%]/.test(body) ? "" : " "
    text += gap + body
    found.push({ node, text: gap + body, citation: node.branch === "none" || node.refuses ? null : cited })
  }
  return found
}

// Why the answer is the abstention, or was written without the evidence that was looked for; null for other answers.
function reasonOf(trace, result) {
  const abstained = trace.decisions.find(one => one.action === "abstain")
  if (abstained) return abstained.cause || "guardrail"
  if (result.best === null)
    return (result.first || trace.nodes.filter(node => node.parent === ROOT)).some(node => node.status === "forbidden" && !result.first
      || !["failed", "bounded", "duplicate"].includes(node.status) && !allowed(node, result.settings || trace.decoding)) ? "constraints not met" : null
  const before = new Map(trace.decisions.map(one => [one.after, one]))
  const bare = pathTo(trace, result.best).find(node => node.branch === "none" && node.text.trim() && before.get(node.parent)?.cause)
  return bare ? before.get(bare.parent).cause : null
}

// ---- building blocks ----

function visible(text, longest = 6000) {
  const cut = String(text).slice(0, longest).replace(/[^\P{C}\n\t\u200c\u200d]|[\u2028\u2029]/gu, "\ufffd")
  return text.length > longest ? `${cut} \u2026 (${text.length - longest} more characters)` : cut
}

function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (name in element && typeof value !== "string") element[name] = value
    else element.setAttribute(name, value)
  }
  element.append(...content)
  return element
}

function named(passage, longest = 200) {
  const page = passage.metadata && passage.metadata.page
  return visible(passage.title || passage.id, longest) + (Number.isInteger(page) ? `, p. ${page}` : "")
}

const at = id => document.getElementById(id)
const say = text => { at("status").textContent = text }

// ---- state ----

let trace = null, chosen = null, shown = null, asking = null

function settingsOf(recorded) {
  return {
    ...recorded,
    weights: { ...recorded.weights },
    require: { ...recorded.require },
    forbid: { ...recorded.forbid },
  }
}

function changes() {
  const base = trace.decoding, found = {}
  for (const name of ["threshold", "beam"]) if (chosen[name] !== base[name]) found[name] = chosen[name]
  for (const name of ["weights", "require"])
    if (JSON.stringify(chosen[name]) !== JSON.stringify(base[name])) found[name] = chosen[name]
  return found
}

// ---- what is shown ----

function answerBox(which, tree, result, prefix) {
  const numbers = new Map(), parts = []
  for (const one of segments(tree, result.best)) {
    parts.push(visible(one.text))
    if (!one.citation) continue
    const same = [...numbers.keys()].find(p => p.id === one.citation.id && p.text === one.citation.text && p.title === one.citation.title)
    const passage = same || one.citation
    if (!same) numbers.set(passage, numbers.size + 1)
    const number = numbers.get(passage)
    parts.push(make("button", {
      type: "button", class: "cite", "aria-label": `passage ${number}: ${named(passage, 120)}`,
      onclick: () => { const target = at(`${prefix}${number}`); target.open = true; target.querySelector("summary").focus() },
    }, `[${number}]`))
  }
  const reason = reasonOf(tree, result), abstained = result.best === null && reason !== null
  if (abstained) parts.push(visible(tree.decoding.abstention || given.abstention))
  const box = make("div", { class: "answer" }, make("p", { class: "body" }, ...(parts.length ? parts : ["(no answer)"])))
  if (reason) box.append(make("p", { class: "dim note" }, `${abstained ? "abstained" : "written without evidence"}: ${visible(reason, 100)}`))
  for (const [passage, number] of numbers)
    box.append(make("details", { class: "passage", id: `${prefix}${number}` },
      make("summary", {}, `[${number}] ${named(passage)}`),
      make("p", { class: "body" }, visible(passage.text)), link(passage)))
  which.replaceChildren(box)
}

function link(passage) {
  const url = [passage.metadata && passage.metadata.url, passage.id].find(one => typeof one === "string" && /^https?:\/\/[^\s]+$/.test(one))
  return url ? make("p", {}, make("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, visible(url, 200)))
    : make("p", { class: "dim" }, visible(passage.id, 200))
}

function bar(judgment) {
  if (!judgment) return make("span", { class: "judgment dim" }, "-")
  const label = likeliest(judgment), p = judgment.distribution[label]
  return make("span", { class: "judgment", title: Object.entries(judgment.distribution).map(([n, v]) => `${n} ${v.toFixed(3)}`).join(", ") },
    `${NAMES[judgment.role] || visible(judgment.role, 40)}: ${label} ${p.toFixed(2)}`)
}

const FATES = {
  chosen: "in the answer", kept: "kept in the beam", finished: "finished, with a lower score", pruned: "fell out of the beam",
  merged: "same text as a better one", duplicate: "repeats an earlier segment", empty: "no text",
  forbidden: "breaks a constraint", failed: "could not be generated", bounded: "could not win, given up",
}

function treeBox(result) {
  const chosenPath = new Set(pathTo(trace, result.best).map(node => node.id))
  const decisions = new Map(trace.decisions.map(one => [one.after, one]))
  function below(parent) {
    const list = make("ul", {}), decision = decisions.get(parent)
    if (decision) list.append(make("li", { class: "decision dim" }, `${decision.action}: ${visible(decision.reason, 200)}` +
      (decision.query ? `; searched for \u201c${visible(decision.query, 200)}\u201d` : "")))
    for (const node of trace.nodes) {
      if (node.parent !== parent) continue
      const fate = chosenPath.has(node.id) ? "chosen" : result.fate[node.id], passage = passageOf(trace, node)
      const item = make("li", { class: `node ${fate}`, "data-node": String(node.id) },
        make("div", { class: "text body" }, visible(node.text || node.finish || "(no text)", 1000)),
        make("div", { class: "facts" }, make("strong", {}, FATES[fate] || fate), `, score ${result.score[node.id].toFixed(3)}, path ${result.path[node.id].toFixed(3)} `,
          ...CRITIQUES.map(group => bar(node.judgments[group]))),
        passage ? make("details", {}, make("summary", {}, named(passage)), make("p", { class: "body" }, visible(passage.text)))
          : make("div", { class: "dim" }, node.branch === "continue" ? "same evidence" : "without evidence"))
      if (decisions.has(node.id)) item.append(below(node.id))
      list.append(item)
    }
    return list
  }
  at("tree").replaceChildren(below(ROOT))
}

function refresh() {
  if (!trace) return
  const started = performance.now(), fixed = trace.options.length || (trace.decoding.reflectors || []).length
  const result = fixed ? { best: trace.best, exact: true, score: trace.nodes.map(n => n.score), path: trace.nodes.map(n => n.path_score), fate: trace.nodes.map(n => n.status) }
    : replay(trace, chosen)
  shown = result
  answerBox(at("answer"), trace, result, "a")
  treeBox(result)
  const changed = Object.keys(changes()).length > 0
  at("exact").textContent = fixed ? "This answer has further judges or options; change it in Python."
    : !changed ? "As it was decoded."
      : result.exact ? "From the recorded tree, as a new decode would choose."
        : "The recorded tree does not hold everything that these settings ask for."
  at("again").hidden = !given.server || fixed || !changed
  at("sliders").disabled = Boolean(fixed)
  at("view").dataset.exact = String(result.exact)
  at("view").dataset.best = String(result.best)
  at("view").dataset.milliseconds = (performance.now() - started).toFixed(1)
}

function show(found) {
  trace = found
  chosen = settingsOf(trace.decoding)
  for (const group of CRITIQUES) set(`w-${group}`, chosen.weights[group])
  set("threshold", chosen.threshold === null ? 0.5 : chosen.threshold)
  set("beam", chosen.beam)
  for (const group of CRITIQUES) at(`need-${group}`).value = ""
  at("view").hidden = false
  at("asked").textContent = visible(trace.question, 2000)
  refresh()
}

function set(id, value) {
  at(id).value = value
  at(`${id}-value`).textContent = String(value)
}

function changed() {
  for (const group of CRITIQUES) {
    chosen.weights[group] = Number(at(`w-${group}`).value)
    const order = given.labels[group], least = at(`need-${group}`).value
    if (least) chosen.require[group] = order.slice(order.indexOf(least))
    else if (trace.decoding.require[group]) chosen.require[group] = trace.decoding.require[group]
    else delete chosen.require[group]
  }
  const moved = Number(at("threshold").value)
  if (trace.decoding.threshold !== null || moved !== 0.5) chosen.threshold = moved
  chosen.beam = Number(at("beam").value)
  for (const id of ["threshold", "beam", ...CRITIQUES.map(group => `w-${group}`)]) at(`${id}-value`).textContent = at(id).value
  refresh()
}

// ---- asking ----

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" }, key = at("key").value
  if (key) headers.Authorization = `Bearer ${key}`
  const reply = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body), signal } : { headers, signal })
  if (!reply.ok) throw new Error((await reply.json().catch(() => null))?.error?.message || `the server answered ${reply.status}`)
  return reply
}

async function ask(question, settings) {
  if (asking) asking.abort()
  asking = new AbortController()
  say("asking")
  at("stop").hidden = false
  const arriving = make("p", { class: "body" })
  at("arriving").replaceChildren(arriving)
  try {
    const body = { model: given.model, stream: true, messages: [{ role: "user", content: question }], selfrag: settings }
    const reply = await call("v1/chat/completions", body, asking.signal)
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader()
    let rest = "", name = null, note = null
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const lines = (rest + piece.value).split("\n")
      rest = lines.pop()
      for (const line of lines) {
        if (!line.startsWith("data: {")) continue
        const chunk = JSON.parse(line.slice(6))
        if (chunk.error) throw new Error(chunk.error.message)
        arriving.append(visible(chunk.choices[0].delta.content || "", 100000))
        if (chunk.selfrag && chunk.selfrag.id) { name = chunk.selfrag.id; note = chunk.selfrag.note }
      }
    }
    if (name === null) throw new Error("the answer ended early")
    show((await (await call(`v1/answers/${name}`, null, asking.signal)).json()).trace)
    at("arriving").replaceChildren()
    say(note ? `answered; ${visible(note, 200)}` : "answered")
  } catch (error) {
    say(error.name === "AbortError" ? "stopped" : visible(error.message, 500))
  } finally {
    at("stop").hidden = true
  }
}

function wanted() {
  return { mode: at("mode").value, passages: Number(at("passages").value) }
}

// ---- copying ----

function pythonCall() {
  const literal = value => JSON.stringify(value).replaceAll("null", "None").replaceAll("true", "True").replaceAll("false", "False")
  const made = Object.entries({ ...wantedOf(trace), ...changes() }).map(([name, value]) =>
    name === "weights" ? `weights=Weights(${CRITIQUES.map(group => `${group}=${value[group]}`).join(", ")})` : `${name}=${literal(value)}`)
  return `from selfrag import SelfRAG, Weights\n\nrag = SelfRAG.from_pretrained(${JSON.stringify(given.model)})\nanswer = rag.generate(${JSON.stringify(trace.question)}, ${made.join(", ")})\n`
}

function wantedOf(found) { return { mode: found.decoding.mode, passages: found.decoding.passages } }

async function copy(text) {
  try { await navigator.clipboard.writeText(text); say("copied") }
  catch { at("copied").hidden = false; at("copied").value = text; at("copied").select(); say("copy the selected text") }
}

function address() {
  const state = { question: trace.question, ...wantedOf(trace), ...changes() }
  return `${location.href.split("#")[0]}#${encodeURIComponent(JSON.stringify(state))}`
}

// ---- start ----

for (const id of ["threshold", "beam", ...CRITIQUES.map(group => `w-${group}`)]) at(id).addEventListener("input", changed)
for (const group of CRITIQUES) {
  for (const label of given.labels[group]) at(`need-${group}`).append(make("option", { value: label }, label))
  at(`need-${group}`).addEventListener("change", changed)
}
at("pin").addEventListener("click", () => {
  const settings = JSON.stringify(changes())
  at("pinned").hidden = false
  at("pinned-settings").textContent = settings === "{}" ? "as decoded" : settings
  answerBox(at("pinned-answer"), trace, shown, "p")
})
at("unpin").addEventListener("click", () => { at("pinned").hidden = true })
at("again").addEventListener("click", () => ask(trace.question, { ...wantedOf(trace), ...changes() }))
at("stop").addEventListener("click", () => asking && asking.abort())
at("copy-json").addEventListener("click", () => copy(JSON.stringify(trace)))
at("copy-python").addEventListener("click", () => copy(pythonCall()))
at("copy-link").addEventListener("click", () => copy(address()))
at("file").addEventListener("change", async event => {
  try { show(JSON.parse(await event.target.files[0].text())); say("opened") }
  catch { say("this file is no trace") }
})
at("form").addEventListener("submit", event => {
  event.preventDefault()
  if (at("question").value.trim()) ask(at("question").value, wanted())
  else say("write a question")
})
if (!given.server) { at("form").hidden = true; at("copy-link").hidden = true }
function showNamed() {
  const name = location.hash.slice(1)
  if (Object.hasOwn(given.traces, name)) show(given.traces[name])
  else say("this page holds no such answer")
}

if (given.traces) {
  addEventListener("hashchange", showNamed)
  showNamed()
} else if (location.hash.length > 1) {
  try {
    const { question, ...settings } = JSON.parse(decodeURIComponent(location.hash.slice(1)))
    at("question").value = String(question)
    if (["adaptive", "always", "never"].includes(settings.mode)) at("mode").value = settings.mode
    if (Number.isInteger(settings.passages)) at("passages").value = settings.passages
    say("press Ask to ask this question")
  } catch { say("the link cannot be read") }
}
