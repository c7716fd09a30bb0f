// The page of a server, and the viewer of a trace from disk. Texts of others only ever become text nodes.
"use strict"
const given = JSON.parse(document.getElementById("given").textContent)
const ROOT = -1
const REFUSED = "the model refused"
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

// A token that the model did not expect where it was read says nothing; see judgment_score in segments.py.
function counts(judgment, undefinedPolicy) {
  const noise = judgment && judgment.source === "token" && judgment.coverage < given.least_coverage
  return Boolean(judgment) && !(noise && undefinedPolicy !== "zero")
}

function segmentScore(node, weights, undefinedPolicy) {
  let total = 0, present = 0, every = 0, missing = false
  for (const group of CRITIQUES) {
    const judgment = node.judgments[group]
    every += Math.abs(weights[group])
    if (counts(judgment, undefinedPolicy)) {
      total += weights[group] * expectation(judgment)
      present += Math.abs(weights[group])
    } else missing = true
  }
  if (undefinedPolicy !== "zero" && missing && present > 0) total *= every / present
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
  if (!judgment || (decision.guardrails || decision.gates || []).some(([name]) => name !== "isrel") || settings.mode !== "adaptive") return decision.action
  if (hasEvidence && settings.segment_end === "retrieval") return "retrieve"
  const [yes, no, keep] = given.retrieve.map(name => judgment.distribution[name])
  const continues = hasEvidence && keep > yes && keep > no
  if (settings.threshold === null) return continues ? "continue" : yes > no ? "retrieve" : "write"
  const above = retrievalScore(judgment, settings.retrieve_test) > settings.threshold
  const thresholdWins = settings.threshold === 0 || settings.keep_evidence === "below_threshold"
  if (continues && !(above && thresholdWins)) return "continue"
  return above ? "retrieve" : "write"
}

function replay(trace, settings) {
  const nodes = trace.nodes, decisions = new Map(trace.decisions.map(one => [one.after, one]))
  const children = new Map(nodes.map(node => [node.id, []])).set(ROOT, [])
  for (const node of nodes) children.get(node.parent).push(node)
  const score = nodes.map(node => segmentScore(node, settings.weights, settings.undefined))
  const deepest = trace.decoding.pool === "deepest" // blank and repeated segments count, and the deepest level has the answer
  const steps = [], keys = [], known = new Map(), evidence = new Map([[ROOT, false]])
  const path = nodes.map(node => {
    const before = node.parent === ROOT ? [] : steps[node.parent]
    steps.push(before.length && !node.text.trim() && !deepest ? before : [...before, score[node.id]])
    const key = deepest ? node.id : `${node.parent === ROOT ? ROOT : keys[node.parent]}:${node.text_ids}`
    if (!known.has(key)) known.set(key, known.size)
    keys.push(known.get(key))
    evidence.set(node.id, evidence.get(node.parent) || node.passage_id !== null)
    return pathScore(steps[node.id], settings.accumulate)
  })
  const over = id => id !== ROOT && (nodes[id].ended || nodes[id].depth === settings.max_segments)
  const fate = nodes.map(node => (node.status === "forbidden" ? "pruned" : node.status))
  const usable = node => !["duplicate", "empty", "failed"].includes(node.status)
  // A critique that was not written is read only where a constraint asks for it: the record lacks it where the
  // constraint is new, and has it, with its weight, where the constraint is gone.
  const constrained = (decoding, group) => Boolean(decoding.require[group] || decoding.forbid[group])
  const fresh = CRITIQUES.filter(group => constrained(settings, group) && !constrained(trace.decoding, group))
  const gone = CRITIQUES.some(group => constrained(trace.decoding, group) && !constrained(settings, group))
  const finished = [], kept = new Set([ROOT])
  // The threshold says where such segments end.
  const written = settings.segment_end !== "retrieval" || settings.threshold === trace.decoding.threshold && !trace.resegmented
  let exact = !gone && written
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
  const bottom = deepest ? Math.max(...finished.map(id => nodes[id].depth)) : null
  const ending = deepest ? finished.filter(id => nodes[id].depth === bottom) : finished
  const winner = ending.reduce((a, b) => (a === null || path[b] > path[a] ? b : a), null)
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

// Why the answer abstains, or was written without the evidence that was looked for; null for other answers.
function reasonOf(trace, result) {
  const abstained = trace.decisions.find(one => one.action === "abstain")
  if (abstained) return abstained.cause || "guardrail"
  if (result.best === null) {
    const first = result.first || trace.nodes.filter(node => node.parent === ROOT)
    if (first.some(node => node.status === "forbidden" && !result.first
      || !["failed", "duplicate"].includes(node.status) && !allowed(node, result.settings || trace.decoding))) return "constraints not met"
    if (first.some(node => node.remark && node.remark.startsWith(REFUSED))) return REFUSED
    return first.some(node => node.remark) ? "no text" : null
  }
  if (trace.nodes[result.best].abstains) return REFUSED
  const before = new Map(trace.decisions.map(one => [one.after, one]))
  const bare = pathTo(trace, result.best).find(node => node.branch === "none" && node.text.trim() && before.get(node.parent)?.cause)
  return bare ? before.get(bare.parent).cause : null
}

// ---- building blocks ----

function visible(text, longest = 6000) {
  const cut = String(text).slice(0, longest)
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
// The conversation: its questions with their answers, and the one that is shown.
let turns = [], current = -1

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

// The changed settings, for people.
function settingsText() {
  const parts = [], found = changes()
  for (const name of ["threshold", "beam"]) if (name in found) parts.push(`${name} ${found[name]}`)
  for (const group of CRITIQUES) {
    if (found.weights && found.weights[group] !== trace.decoding.weights[group]) parts.push(`weight of ${NAMES[group]} ${found.weights[group]}`)
    if (found.require && found.require[group]) parts.push(`${NAMES[group]} ${found.require[group].join(" or ")}`)
  }
  return parts.join(", ") || "as decoded"
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
  const reason = reasonOf(tree, result), abstained = reason === REFUSED || result.best === null && reason !== null
  if (abstained && result.best === null) parts.push(visible(tree.decoding.abstention || given.abstention))
  const box = make("div", { class: "answer" }, make("p", { class: "body" }, ...(parts.length ? parts : ["(no answer)"])))
  if (reason) box.append(make("p", { class: "dim note" }, `${abstained ? "abstained" : "written without evidence"}: ${visible(reason, 100)}`))
  for (const [passage, number] of numbers)
    box.append(make("details", { class: "passage", id: `${prefix}${number}` },
      make("summary", {}, `[${number}] ${named(passage)}`),
      make("p", { class: "body" }, visible(passage.text)), link(passage)))
  which.replaceChildren(box)
}

// Where a passage stands: its address, or its file with page, heading and characters, or its id.
function link(passage) {
  const place = passage.metadata || {}
  const url = [place.url, passage.id].find(one => typeof one === "string" && /^https?:\/\/[^\s]+$/.test(one))
  if (url) return make("p", {}, make("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, visible(url, 200)))
  if (typeof place.file !== "string") return make("p", { class: "dim" }, visible(passage.id, 200))
  const parts = [visible(place.file, 500)]
  if (Number.isInteger(place.page)) parts.push(`page ${place.page}`)
  if (typeof place.heading === "string") parts.push(visible(place.heading, 300))
  if (Number.isInteger(place.start) && Number.isInteger(place.end)) parts.push(`characters ${place.start} to ${place.end}`)
  return make("p", { class: "dim place" }, parts.join(", "))
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
  forbidden: "breaks a constraint", failed: "could not be generated",
}

function treeBox(result) {
  const chosenPath = new Set(pathTo(trace, result.best).map(node => node.id))
  const decisions = new Map(trace.decisions.map(one => [one.after, one]))
  function below(parent) {
    const list = make("ul", {}), decision = decisions.get(parent)
    if (decision) list.append(make("li", { class: "decision dim" }, `${decision.action}: ${visible(decision.reason, 200)}` +
      (decision.query ? `; searched for \u201c${visible(decision.query, 200)}\u201d` : "")))
    const level = id => (Number.isFinite(result.path[id]) ? result.path[id] : -Infinity)
    const candidates = trace.nodes.filter(node => node.parent === parent).sort((a, b) => level(b.id) - level(a.id) || a.id - b.id)
    for (const node of candidates) {
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
  const started = performance.now(), fixed = trace.options.length || (trace.decoding.judges || trace.decoding.reflectors || []).length
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
  at("asked").textContent = visible(turns[current] ? turns[current].question : trace.question, 2000)
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
  if (turns.length) history.replaceState(null, "", address())
}

// ---- asking ----

const STOPPED = "the server does not answer; is it still running?"

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" }, key = at("key").value
  if (key) headers.Authorization = `Bearer ${key}`
  const reply = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body), signal } : { headers, signal })
  if (!reply.ok) throw new Error((await reply.json().catch(() => null))?.error?.message || `the server answered ${reply.status}`)
  return reply
}

function told(error) {
  return error.name === "AbortError" ? "stopped" : error instanceof TypeError ? STOPPED : visible(error.message, 500)
}

// Ask a question behind the first `before` turns; the turns after them go.
async function ask(question, settings, before = turns.length) {
  if (asking) asking.abort()
  const own = asking = new AbortController()
  say("asking")
  at("stop").hidden = false
  const arriving = make("p", { class: "body" })
  at("arriving").replaceChildren(arriving)
  try {
    const earlier = turns.slice(0, before)
    const messages = earlier.flatMap(turn => [{ role: "user", content: turn.question }, { role: "assistant", content: turn.text }])
    messages.push({ role: "user", content: question })
    const reply = await call("v1/chat/completions", { model: given.name, stream: true, messages, selfrag: settings }, own.signal)
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader()
    let rest = "", name, note = null
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const lines = (rest + piece.value).split("\n")
      rest = lines.pop()
      for (const line of lines) {
        if (!line.startsWith("data: {")) continue
        const chunk = JSON.parse(line.slice(6))
        if (chunk.error) throw new Error(chunk.error.message)
        arriving.append(visible(chunk.choices[0].delta.content || "", 100000))
        if (chunk.selfrag) { name = chunk.selfrag.id; note = chunk.selfrag.note }
      }
    }
    if (!name) throw new Error(name === null ? "answered; the server cannot keep the answer, so its trace is not here" : "the answer ended early")
    turns = [...earlier, await kept(name, own.signal, question)]
    showTurn(turns.length - 1)
    at("arriving").replaceChildren()
    if (at("question").value.trim() === question.trim()) at("question").value = ""
    say(note ? `answered; ${visible(note, 200)}` : "answered")
  } catch (error) {
    say(told(error))
  } finally {
    if (asking === own) at("stop").hidden = true
  }
}

async function kept(name, signal, question) {
  const found = await (await call(`v1/answers/${encodeURIComponent(name)}`, null, signal)).json()
  return { name, question: question ?? found.question, text: found.text, trace: found.trace }
}

function showTurn(number) {
  current = number
  show(turns[number].trace)
  at("turns").replaceChildren(...turns.map((turn, index) => {
    const title = make("button", { type: "button", class: "cite", onclick: () => showTurn(index) }, visible(turn.question, 300))
    if (index === current) title.setAttribute("aria-current", "true")
    return make("li", {}, title, make("p", {}, visible(turn.text, 600)))
  }))
  at("turns").hidden = turns.length < 2
  at("new").hidden = false
  history.replaceState(null, "", address())
}

function wanted() {
  return { mode: at("mode").value, passages: Number(at("passages").value) }
}

// Show the conversation that the address names; where the server keeps it no longer, its question is to be asked again.
async function restore() {
  let state
  try { state = Object(JSON.parse(decodeURIComponent(location.hash.slice(1)))) }
  catch { say("the link cannot be read"); return }
  if (["adaptive", "always", "never"].includes(state.mode)) at("mode").value = state.mode
  if (Number.isInteger(state.passages)) at("passages").value = state.passages
  const names = Array.isArray(state.answers) ? state.answers.slice(0, 100).map(String) : []
  const questions = Array.isArray(state.questions) ? state.questions.map(String) : []
  at("question").value = questions.at(-1) || ""
  try {
    const found = []
    for (const [index, name] of names.entries()) found.push(await kept(name, null, questions[index]))
    if (!found.length) { say("press Ask to ask this question"); return }
    turns = found
    showTurn(turns.length - 1)
    at("question").value = ""
    use(state)
    say("this answer was given before")
  } catch (error) { say(`${told(error)}`) }
}

// Take over settings of a link, where they are of the kind that this page makes.
function use(state) {
  for (const group of CRITIQUES) {
    if (Number.isFinite(state.weights?.[group])) set(`w-${group}`, state.weights[group])
    const least = Array.isArray(state.require?.[group]) && given.labels[group].find(label => state.require[group].includes(label))
    if (least) at(`need-${group}`).value = least
  }
  for (const name of ["threshold", "beam"]) if (Number.isFinite(state[name])) set(name, state[name])
  if (["weights", "require", "threshold", "beam"].some(name => name in state)) changed()
}

// ---- copying ----

function literal(value) {
  if (value === null) return "None"
  if (typeof value === "boolean") return value ? "True" : "False"
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`
  if (typeof value === "object") return `{${Object.entries(value).map(([name, inner]) => `${literal(name)}: ${literal(inner)}`).join(", ")}}`
  return JSON.stringify(value)
}

// A program that gives this answer: the same model and index, and every setting that is not the default.
function pythonCall() {
  const made = []
  for (const [name, value] of Object.entries({ ...trace.decoding, ...changes() })) {
    if (JSON.stringify(value) === JSON.stringify(given.defaults[name])) continue
    made.push(name === "weights" ? `weights=Weights(${Object.entries(value).map(([n, v]) => `${n}=${literal(v)}`).join(", ")})` : `${name}=${literal(value)}`)
  }
  const earlier = turns.slice(0, Math.max(0, current))
  const spoken = earlier.flatMap(turn => [{ role: "user", content: turn.question }, { role: "assistant", content: turn.text }])
  const question = earlier.length ? [...spoken, { role: "user", content: turns[current].question }] : trace.question
  const opened = given.index === null ? literal(given.model) : `${literal(given.model)}, retriever=${literal(given.index)}`
  const place = given.index === null ? "" : "# the index is named as in the folder where the server was started\n"
  const call = `answer = rag.generate(${[literal(question), ...made].join(", ")})`
  return `from selfrag import SelfRAG, Weights\n\n${place}rag = SelfRAG.from_pretrained(${opened})\n${call}\nprint(answer.cited_text())\nrag.close()\n`
}

function wantedOf(found) { return { mode: found.decoding.mode, passages: found.decoding.passages } }

async function copy(text) {
  try { await navigator.clipboard.writeText(text); say("copied") }
  catch { at("copied").hidden = false; at("copied").value = text; at("copied").select(); say("copy the selected text") }
}

function address() {
  const seen = turns.slice(0, current + 1)
  const state = { questions: seen.length ? seen.map(turn => turn.question) : [trace.question], answers: seen.map(turn => turn.name), ...wantedOf(trace), ...changes() }
  return `${location.href.split("#")[0]}#${encodeURIComponent(JSON.stringify(state))}`
}

// ---- what words mean ----

const TERMS = {
  retrieve: "Whether the index is searched: adaptive lets the model decide before each segment.",
  passages: "How many passages of a search the answer may be written from.",
  isrel: "Is the passage about the question? Relevant or Irrelevant. The slider is its weight in the score.",
  issup: "Does the passage support what is written? Fully, Partially, or No support. The slider is its weight in the score.",
  isuse: "How useful is the text as an answer, from 1 to 5? The slider is its weight in the score.",
  threshold: "The index is searched where the model\u2019s wish to retrieve is above this. Lower searches more often.",
  beam: "How many answers are written side by side. After each segment the best stay.",
  score: "How likely the text is, and the weighted judgments of it.",
  path: "The score of the answer up to here, over all its segments.",
}

function explain(element) {
  const tip = at("tip"), box = element.getBoundingClientRect()
  tip.textContent = TERMS[element.dataset.term]
  tip.hidden = false
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 16)
  tip.style.left = `${Math.max(8, left) + scrollX}px`
  tip.style.top = `${box.bottom + scrollY + 4}px`
}

for (const [name, meaning] of Object.entries(TERMS)) at("terms").append(make("dt", {}, name), make("dd", { id: `term-${name}` }, meaning))
const hide = () => { at("tip").hidden = true }
for (const element of document.querySelectorAll("[data-term]")) {
  element.classList.add("term")
  element.tabIndex = 0
  element.setAttribute("aria-describedby", `term-${element.dataset.term}`)
  for (const kind of ["mouseenter", "focus"]) element.addEventListener(kind, () => explain(element))
  for (const kind of ["mouseleave", "blur"]) element.addEventListener(kind, hide)
}
addEventListener("keydown", event => { if (event.key === "Escape") hide() })

// ---- start ----

for (const id of ["threshold", "beam", ...CRITIQUES.map(group => `w-${group}`)]) at(id).addEventListener("input", changed)
for (const group of CRITIQUES) {
  // the lowest label is "any"
  for (const label of given.labels[group].slice(1)) at(`need-${group}`).append(make("option", { value: label }, label))
  at(`need-${group}`).addEventListener("change", changed)
}
at("pin").addEventListener("click", () => {
  at("pinned").hidden = false
  at("pinned-settings").textContent = `${at("asked").textContent} (${settingsText()})`
  answerBox(at("pinned-answer"), trace, shown, "p")
})
at("unpin").addEventListener("click", () => { at("pinned").hidden = true })
at("again").addEventListener("click", () => {
  const question = turns[current] ? turns[current].question : trace.question
  ask(question, { ...wantedOf(trace), ...changes() }, Math.max(0, current))
})
at("stop").addEventListener("click", () => asking && asking.abort())
at("copy-json").addEventListener("click", () => copy(JSON.stringify(trace)))
at("copy-python").addEventListener("click", () => copy(pythonCall()))
at("copy-link").addEventListener("click", () => copy(address()))
at("file").addEventListener("change", async event => {
  try {
    const opened = JSON.parse(await event.target.files[0].text())
    turns = []
    current = -1
    at("turns").hidden = true
    show(opened)
    say("opened")
  }
  catch { say("this file is no trace") }
})
at("form").addEventListener("submit", event => {
  event.preventDefault()
  if (at("question").value.trim()) ask(at("question").value, wanted())
  else say("write a question")
})
at("question").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
  event.preventDefault()
  at("form").requestSubmit()
})
at("new").addEventListener("click", () => {
  turns = []
  current = -1
  trace = null
  for (const id of ["view", "turns", "new"]) at(id).hidden = true
  history.replaceState(null, "", location.href.split("#")[0])
  say("")
  at("question").focus()
})
at("key-field").hidden = !given.needs_key
if (given.server) at("served").textContent = given.index !== null ? `searches ${visible(given.index, 300)}`
  : given.model === "demo" ? "searches the demo corpus" : "no index; passages come with the questions"
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
  restore()
  at("key").addEventListener("change", () => { if (!trace) restore() })
}
