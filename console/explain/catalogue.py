"""Every finding, once: its id, what it says, what it needs, and its thresholds with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedtop.console.past.sample_sizes import needed


@dataclass(frozen=True, slots=True)
class Threshold:
    """One bound, its unit, and why it has this value."""

    name: str
    value: float
    unit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding. `needs` says in words when it is reported; `yields_to` are findings that already say the same."""

    id: str
    title: str
    needs: str
    thresholds: tuple[Threshold, ...]
    yields_to: tuple[str, ...] = ()


WINDOW = Threshold("window", 30.0, "s", "long enough for tens of first tokens at one request a second")
LOOKS = Threshold("looks", 3, "looks", "of an engine that has stopped, whose clock cannot say for how long")
OPENS = Threshold("opens after", 2.0, "s", "a figure at its threshold comes and goes; what is shown should stay")
CLOSES = Threshold("closes after", 5.0, "s", "what comes back so soon had not gone")
MIN_SPAN = Threshold("span", 10.0, "s", "the first seconds of a session are not its usual traffic")
MIN_STEPS = Threshold("steps", 20, "steps", "fewer steps cannot distinguish a state from a moment")
MIN_FIRSTS = Threshold("first tokens", needed(0.5), "samples", "a median of fewer moves with each one")
MIN_GAPS = Threshold("gaps", 2 * needed(0.95), "samples", "a verdict asks for twice what the figure does")
STALL = Threshold("stall", 3.0, "× median ITL", "the project's own definition of a stall; an ITL SLO replaces it")
STALL_SHARE = Threshold(
    "stalled gaps", 0.05, "of gaps", "a p95 that is itself a stall: what people call not smooth"
)
QUEUED_SHARE = Threshold("queued steps", 0.5, "of steps", "a queue that comes and goes is how batching works")
MAIN_SHARE = Threshold(
    "one reason", 0.5, "of queued steps", "the cause must hold more often than all others together"
)

QUEUE_PART = Threshold("queue part", 0.5, "of TTFT", "below it, prompt work and not waiting makes the TTFT")
QUEUE_STEPS = Threshold("queue time", 5, "median steps", "joining the next step costs up to one; five is waiting")
DECODE_PART = Threshold("decode part", 0.5, "of the budget", "above it, decodes and not prompts use up the step")

PROMPT_PART = Threshold("prompt part", 0.5, "of a step's tokens", "above it, prompts and not decodes make the step")
PROMPT_STALLS = Threshold("stalls beside prompts", 0.8, "of stalls", "fewer, and something else stalls as well")
PROMPT_CONTRAST = Threshold(
    "contrast", 0.3, "of tokens", "if other steps carry prompts too, prompts are not the reason"
)

PREEMPTIONS = Threshold("preemptions", 3, "events", "one or two are a pool that is well filled")
RECOMPUTED = Threshold("recomputed", 0.02, "of tokens", "below it, preemption costs less than the room it makes")

LOW_USE = Threshold("budget use", 0.5, "of the budget", "above it, the step is being used")
FITTING = Threshold("held up", 1, "requests", "each of them could run now")
INVERTED_STEPS = Threshold("inverted", 20, "steps in a row", "a victim needs a few steps to be chosen")

BEFORE = Threshold("held before", 0.1, "of steps", "a change cannot start what was there already")
AFTER = Threshold("held after", 0.5, "of steps", "most steps since the change")
SIDE_STEPS = Threshold("each side", 20, "steps", "both sides of the change need steps to compare")

HIT_DROP = Threshold("drop", 0.5, "× the earlier rate", "half of the hits are gone")
HIT_BEFORE = Threshold("earlier rate", 0.2, "of prompt tokens", "a cache that never helped cannot fail")
HIT_SAMPLES = Threshold("admissions", 20, "on each side", "hits differ from request to request")

SILENT = Threshold("silence", 5.0, "s", "no step of a served model takes as long")

SLOWER = Threshold(
    "slower", 2.0, "× the median", "of steps with the same mix, whose cost differs by about a quarter"
)
SAME_MIX = Threshold("same mix", 10, "steps", "a median to compare with")
SLOW_STEPS = Threshold("slow steps", 3, "steps", "one may be a page fault")
SLOW_TIME = Threshold("time lost", 0.02, "of step time", "too small to notice below that")

IDLE = Threshold("idle", 0.2, "of the time", "hand-over between steps takes a few percent")
CLIENT_PART = Threshold(
    "before arrival", 0.5, "of wait and TTFT", "more time goes by before the scheduler than after"
)

GROWTH = Threshold("backlog growth", 0.05, "of the demand", "below it arrivals and service differ by chance")
BUSY = Threshold("busy", 0.9, "of the time", "an engine with idle time can still catch up")
LOST_SHARE = Threshold("lost hits", 0.1, "of prompt tokens", "below it a larger pool saves little work")
OVERTAKEN = Threshold("overtaken by", 20, "later arrivals", "some are overtaken by chance, so many by rule")
MUCH_LONGER = Threshold("much longer", 10.0, "× the median wait", "the others are served, this one is not")
LONG_WAIT = Threshold("long wait", 1.0, "s", "ten times next to nothing is next to nothing")
SPIKES = Threshold("gaps past the SLO", 3, "gaps", "one or two are a page fault")
REFUSALS = Threshold("refusals", 3, "requests", "one or two are a client's mistake")
REFUSED_SHARE = Threshold("refused", 0.05, "of requests", "as many as would break a p95")
WASTED = Threshold("wasted prefill", 0.02, "of tokens", "too small to notice below that")
DEFERRED_SHARE = Threshold("deferred", 0.5, "of the waiting", "below it the queue is the scheduler's own")

_TTFT = (MIN_FIRSTS, MIN_STEPS, QUEUE_PART, QUEUE_STEPS, QUEUED_SHARE, MAIN_SHARE, STALL, STALL_SHARE)
_QUEUE = (MIN_STEPS, QUEUED_SHARE, MAIN_SHARE)

RULES: tuple[Rule, ...] = (
    Rule(
        "overload",
        "Overload: more work arrives than the engine serves",
        "the backlog in work grows over the whole window, the queue lasts, and the engine is never idle",
        (MIN_SPAN, MIN_STEPS, QUEUED_SHARE, GROWTH, BUSY),
    ),
    Rule(
        "cut-off",
        "Answers are cut off because the pool is full",
        "a request alone reaches the whole pool and ends by kv_capacity",
        (),
    ),
    Rule(
        "starvation",
        "Some requests starve: others overtake them",
        "many later arrivals overtook a waiting request, or among several classes or clients one waits much longer",
        (OVERTAKEN, MUCH_LONGER, LONG_WAIT, MIN_FIRSTS),
    ),
    Rule(
        "refused",
        "A share of the requests is refused",
        "refusals of the window, as a share of the requests that came",
        (REFUSALS, REFUSED_SHARE),
    ),
    Rule(
        "ttft-decodes",
        "TTFT is up while ITL is smooth: decodes use up the budget",
        "TTFT is mostly queue time, the queue lasts, ITL is smooth, a budget holds the head and decodes fill it",
        (*_TTFT, DECODE_PART),
        ("preemption-pressure",),
    ),
    Rule(
        "ttft-backlog",
        "TTFT is up while ITL is smooth: prompts wait behind a prompt backlog",
        "as ttft-decodes, but prompts fill the budget",
        (*_TTFT, DECODE_PART),
        ("preemption-pressure",),
    ),
    Rule(
        "ttft-sequence-cap",
        "TTFT is up while ITL is smooth: the sequence cap holds the queue",
        "TTFT is mostly queue time, the queue lasts, ITL is smooth and the head waits for a place below the cap",
        _TTFT,
        ("starved-after-change",),
    ),
    Rule(
        "ttft-pool",
        "TTFT is up while ITL is smooth: the KV pool holds the queue",
        "TTFT is mostly queue time, the queue lasts, ITL is smooth and the head waits for blocks",
        _TTFT,
        ("preemption-pressure", "preempt-loop"),
    ),
    Rule(
        "itl-prompts",
        "ITL is up when prompts arrive: prompt chunks make steps long",
        "gaps stall, nearly always in steps made of prompt tokens, and other steps carry few of them",
        (MIN_SPAN, MIN_GAPS, STALL, STALL_SHARE, PROMPT_PART, PROMPT_STALLS, PROMPT_CONTRAST),
    ),
    Rule(
        "itl-spikes",
        "A few gaps are past the ITL SLO",
        "an ITL SLO is given, and some gaps are past it, too few to make ITL stall",
        (SPIKES, STALL_SHARE),
        ("itl-prompts", "preemption-pressure"),
    ),
    Rule(
        "preemption-pressure",
        "Capacity pressure: preemptions, and work that is done twice",
        "several preemptions, and a noticeable part of the work is computed again; the chain says what TTFT and ITL"
        " do meanwhile",
        (PREEMPTIONS, RECOMPUTED),
        ("preempt-loop",),
    ),
    Rule(
        "preempt-loop",
        "A request is preempted and admitted again and again",
        "the ledger marks a loop: three preemptions of one request while nothing finished in between",
        (),
    ),
    Rule(
        "queue-low-use",
        "Requests wait while steps are mostly empty",
        "a queue that lasts, little use of the budget, and one check that holds the head",
        (*_QUEUE, LOW_USE),
        (
            "ttft-sequence-cap",
            "ttft-pool",
            "watermark-holds",
            "starved-after-change",
            "preemption-pressure",
            "preempt-loop",
        ),
    ),
    Rule(
        "watermark-holds",
        "The watermark holds the queue",
        "a queue that lasts, whose head would fit but for the watermark",
        _QUEUE,
        ("starved-after-change",),
    ),
    Rule(
        "head-blocks-smaller",
        "The head of the queue holds up smaller requests that would fit",
        "one head waits for blocks for many steps; whole prompts behind it fit into what is free",
        (MIN_STEPS, FITTING),
    ),
    Rule(
        "inverted-priority",
        "An urgent request waits while less urgent ones run",
        "priority policy; the head is marked inverted for many steps in a row",
        (INVERTED_STEPS,),
    ),
    Rule(
        "starved-after-change",
        "A changed limit holds requests back",
        "after a limit was tightened most steps leave running requests without a token, or hold the queue by that"
        " limit; before it hardly any did",
        (SIDE_STEPS, BEFORE, AFTER),
    ),
    Rule(
        "hit-rate-falling",
        "The prefix cache gives less than it did",
        "hit rate of the window against everything before it, enough admissions in both",
        (HIT_DROP, HIT_BEFORE, HIT_SAMPLES),
    ),
    Rule(
        "lost-hits",
        "The pool is too small for its prefixes: hits are lost to eviction",
        "prompt tokens of the window that had been in the cache and were evicted, as a share of prompt tokens",
        (LOST_SHARE, HIT_SAMPLES),
    ),
    Rule(
        "aborted-prefill",
        "Prompts are computed for clients who leave",
        "tokens computed for requests that were aborted before their first output, as a share of all work",
        (WASTED,),
    ),
    Rule(
        "deferred",
        "Requests wait for something that is not the scheduler's",
        "most of those who wait are not ready: a grammar, remote KV, streamed input",
        (DEFERRED_SHARE, LONG_WAIT),
    ),
    Rule(
        "no-progress",
        "No progress while requests wait",
        "steps compute nothing new, the engine is paused, or nothing comes from it, and requests are in flight",
        (MIN_STEPS, SILENT),
    ),
    Rule(
        "slow-device",
        "Some steps are slow for what is in them: not the scheduler",
        "steps whose device time is far above that of steps with the same mix, in this window or before it",
        (SAME_MIX, SLOWER, SLOW_STEPS, SLOW_TIME),
    ),
    Rule(
        "idle-device",
        "The device idles while requests are in flight: not the limits",
        "time between device calls, while requests run or wait and nothing is paused",
        (MIN_STEPS, IDLE),
    ),
    Rule(
        "front-end",
        "Requests lose their time before they reach the scheduler",
        "clients report waiting longer before arrival than the scheduler needs for a first token",
        (MIN_FIRSTS, CLIENT_PART),
    ),
)

BY_ID: Mapping[str, Rule] = {rule.id: rule for rule in RULES}
