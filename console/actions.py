"""Every action of the console, once: keys, footer, help and palette derive from this table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

LIVE, REPLAY = "live", "replay"
GLOBAL = "global"
PANEL = "panel"
PANELS = ("Timeline", "KV", "Requests", "Latency", "Queue", "Knobs", "Events")
"""Of the Live screen, in the order of their digits."""
TURNS = frozenset(("next_panel", "previous_panel", *(f"panel_{number}" for number, _ in enumerate(PANELS, 1))))
"""Actions that only move the focus."""

SCOPES: Mapping[str, str] = MappingProxyType(
    {
        GLOBAL: "Everywhere",
        PANEL: "In every panel",
        "batch": "Timeline [1]",
        "requests": "Requests [3]",
        "latency": "Latency [4]",
        "knobs": "Knobs [6]",
        "events": "Events [7]",
        "request": "Request screen",
        "presets": "Presets [8] of the Knobs screen",
        "changes": "Changes [9] of the Knobs screen",
        "findings": "Explain: findings",
        "finding": "Explain: why",
        "rerun": "Re-run screen",
    }
)


class ActionError(ValueError):
    """A key table that cannot be used; the text names the key or the action."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing an operator can do. `keys` are Textual key names; `footer` is its word there, empty for none.

    A scope other than `global` holds while that panel has the focus. `mode` is `live` or `replay` for what makes
    sense only there.
    """

    id: str
    keys: tuple[str, ...]
    title: str
    help: str
    scope: str = GLOBAL
    footer: str = ""
    mode: str = ""


REPLAY_ACTIONS: tuple[Action, ...] = (
    Action("play", ("space",), "Play or pause", "From the end: from the beginning", footer="play", mode=REPLAY),
    Action("replay_back", ("comma",), "Previous step", "Playing stops there", footer="step", mode=REPLAY),
    Action("replay_forward", ("full_stop",), "Next step", "Playing stops there", mode=REPLAY),
    Action("slower", ("left_square_bracket",), "Slower", "Down to 0.1x", footer="speed", mode=REPLAY),
    Action("faster", ("right_square_bracket",), "Faster", "Up to 1000x", mode=REPLAY),
    Action("event_back", ("left_curly_bracket",), "Previous event", "Of the kind chosen with m", mode=REPLAY),
    Action(
        "event_forward",
        ("right_curly_bracket",),
        "Next event",
        "Of the kind chosen with m",
        footer="event",
        mode=REPLAY,
    ),
    Action("event_kind", ("m",), "Which event", "Any, preemption, knob change, refusal, outlier", mode=REPLAY),
    Action("jump", ("J",), "Jump", "To a step, time, percentage or event", footer="jump", mode=REPLAY),
    Action("replay_start", (), "Go to the beginning", "Of the recording", mode=REPLAY),
    Action("replay_end", ("end",), "Go to the end", "Of the recording", mode=REPLAY),
    Action(
        "rerun_step",
        ("r",),
        "Re-run from this step",
        "With the staged knobs, beside what was recorded",
        mode=REPLAY,
    ),
    Action(
        "rerun_start",
        ("b",),
        "Re-run from the start",
        "With the staged knobs, beside what was recorded",
        mode=REPLAY,
    ),
    Action("rerun_show", ("v",), "Show the last re-run", "Over the recorded run", mode=REPLAY),
    Action(
        "knob_rerun", ("enter",), "Re-run from this step", "With the staged values", "knobs", "re-run", mode=REPLAY
    ),
    Action("moment_earlier", ("left", "h"), "Earlier moment", "", "rerun", footer="cursor", mode=REPLAY),
    Action("moment_later", ("right", "l"), "Later moment", "", "rerun", mode=REPLAY),
    Action("moment_parting", ("d",), "The first difference", "", "rerun", footer="difference", mode=REPLAY),
    Action(
        "moment_show", ("enter",), "Show the moment in the replay", "In all panels", "rerun", "show", mode=REPLAY
    ),
    Action("range_longer", ("plus", "equals_sign"), "Longer range", "", "rerun", "range", mode=REPLAY),
    Action("range_shorter", ("minus",), "Shorter range", "", "rerun", mode=REPLAY),
    Action(
        "rerun_over", ("o",), "Compare with", "The recorded run, or its own re-run", "rerun", "over", mode=REPLAY
    ),
)

ACTIONS: tuple[Action, ...] = (
    Action("help", ("question_mark", "f1"), "Help", "This panel's figures and all keys", footer="help"),
    Action("quit", ("q", "ctrl+q"), "Quit", "Asks while requests are in flight", footer="quit"),
    Action("interrupt", ("ctrl+c",), "Copy the selection, else quit", "As in a shell"),
    Action(
        "palette", ("ctrl+p", "colon"), "Command palette", "Every action by name, with its key", footer="palette"
    ),
    Action("next_panel", ("tab",), "Next panel", "Move the focus on", footer="panel"),
    Action("previous_panel", ("shift+tab",), "Previous panel", "Move the focus back"),
    *(
        Action(f"panel_{number}", (str(number),), f"Go to {name}", f"Focus panel [{number}]")
        for number, name in enumerate(PANELS, start=1)
    ),
    Action("panel_8", ("8",), "Go to Presets", "Panel [8] of the Knobs screen"),
    Action("panel_9", ("9",), "Go to Changes", "Panel [9] of the Knobs screen"),
    Action(
        "zoom", ("z",), "Zoom the panel", "The focused panel fills the screen; z or Esc goes back", footer="zoom"
    ),
    Action("back", ("escape",), "Back one level", "Zoom, staged knobs, filter, past step; never quits"),
    Action("pause_view", ("space",), "Pause the view", "Collection continues", footer="pause", mode=LIVE),
    Action("live", ("end",), "Return to the present", "Leave the inspected step", mode=LIVE),
    Action("pause_engine", ("P",), "Pause or resume the engine", "Requests keep queueing"),
    Action("step_engine", ("full_stop",), "Run one step", "While the engine is paused", mode=LIVE),
    Action("record", ("W",), "Record, or end the recording", "The last minutes and what follows", mode=LIVE),
    *REPLAY_ACTIONS,
    Action("filter", ("slash",), "Filter requests", "Words for id or state, !word, kv>40, age>2s", footer="filter"),
    Action("explain", ("x",), "Explain", "Symptoms, their causes, and which knob helps", footer="explain"),
    Action("guide", (), "Guided minute", "Pressure, the finding, stage, try, keep", mode=LIVE),
    Action("knobs_screen", ("K",), "Knobs screen", "Presets, and the effect of past changes", footer="knobs"),
    Action("copy", ("y",), "Copy the selected line", "Through OSC 52 or tmux, else to a file"),
    Action("export", ("e",), "Export the window", "The shown steps as JSONL and CSV", footer="export"),
    Action("screenshot", ("s",), "Screenshot", "SVG and text"),
    Action(
        "theme",
        ("t",),
        "Next theme",
        "ansi, colour-blind, dark, high-contrast, light, monochrome, and your own",
    ),
    Action("mouse", ("M",), "Mouse on or off", "Off lets the terminal select text"),
    Action("suspend", ("ctrl+z",), "Suspend", "fg brings the console back"),
    Action("up", ("up", "k"), "Up", "One line", PANEL),
    Action("down", ("down", "j"), "Down", "One line", PANEL),
    Action("page_up", ("pageup",), "Page up", "One page", PANEL),
    Action("page_down", ("pagedown",), "Page down", "One page", PANEL),
    Action("first", ("g", "home"), "First", "To the beginning", PANEL),
    Action("last", ("G",), "Last", "To the end", PANEL),
    Action(
        "step_back",
        ("left", "h"),
        "Earlier column",
        "Zoomed: the step before, in all panels",
        "batch",
        footer="cursor",
    ),
    Action(
        "step_forward", ("right", "l"), "Later column", "Zoomed: the step after; past the newest: live", "batch"
    ),
    Action("column_open", ("enter",), "Show the column's longest step", "In all panels", "batch", footer="step"),
    Action(
        "steps_more",
        ("plus", "equals_sign"),
        "Longer range",
        "Zoomed: more steps per column",
        "batch",
        footer="range",
    ),
    Action("steps_fewer", ("minus",), "Shorter range", "Zoomed: fewer steps a column", "batch"),
    Action("sort_left", ("less_than_sign",), "Sort by the column to the left", "", "requests", footer="sort"),
    Action("sort_right", ("greater_than_sign",), "Sort by the column to the right", "", "requests"),
    Action("sort_invert", ("I",), "Invert the order", "", "requests"),
    Action("follow", ("f",), "Follow the row", "Keep the selected request in sight", "requests", footer="follow"),
    Action("freeze", ("F",), "Freeze the order", "Values go on changing", "requests", footer="freeze"),
    Action("next_match", ("n",), "Next request", "Of those the filter keeps", "requests"),
    Action("previous_match", ("N",), "Previous request", "Of those the filter keeps", "requests"),
    Action("detail", ("enter",), "Show the request's life", "", "requests", footer="detail"),
    Action("abort", ("delete",), "Abort the request", "Asks first; its answer ends here", "requests", mode=LIVE),
    Action("window_longer", ("plus", "equals_sign"), "Longer window", "Up to an hour", "latency", footer="window"),
    Action("window_shorter", ("minus",), "Shorter window", "Down to ten seconds", "latency"),
    Action("knob_up", ("plus", "right", "l"), "Raise the knob", "Staged until Enter", "knobs", footer="raise"),
    Action("knob_down", ("minus", "left", "h"), "Lower the knob", "Staged until Enter", "knobs"),
    Action("knob_type", ("equals_sign",), "Type a value", "Staged until Enter", "knobs", footer="type"),
    Action("knob_apply", ("enter",), "Apply the staged values", "All or none", "knobs", "apply", mode=LIVE),
    Action("knob_undo", ("u",), "Undo", "Stages the values before; Enter applies them", "knobs", "undo", mode=LIVE),
    Action(
        "knob_try",
        ("c",),
        "Apply on trial, or confirm",
        "Reverts unless confirmed in time",
        "knobs",
        footer="try",
        mode=LIVE,
    ),
    Action("knob_untry", ("r",), "Revert the trial now", "To the values before it", "knobs", mode=LIVE),
    Action("knob_launch", ("R",), "Launch values", "Stages the values the engine started with", "knobs"),
    Action(
        "preset_stage", ("enter",), "Stage the preset", "Only the values that differ", "presets", footer="stage"
    ),
    Action("preset_save", ("w",), "Save the present values as a preset", "", "presets", footer="save"),
    Action("change_step", ("enter",), "Show the change's step", "On the Live screen", "changes", footer="show"),
    Action("request_earlier", ("left", "h"), "Earlier step of the request", "", "request", footer="step"),
    Action("request_later", ("right", "l"), "Later step of the request", "", "request"),
    Action("request_next", ("n",), "Next request", "In the order of the table", "request", footer="next"),
    Action("request_previous", ("N",), "Previous request", "In the order of the table", "request"),
    Action("request_step", ("enter",), "Show the step on the Live screen", "", "request", footer="show"),
    Action(
        "request_abort",
        ("delete",),
        "Abort the request",
        "Asks first; its answer ends here",
        "request",
        mode=LIVE,
    ),
    Action("event_step", ("enter",), "Show the event's step", "In all panels", "events", footer="step"),
    Action("event_level", ("o",), "More or fewer events", "Most, important, all", "events", footer="kinds"),
    Action("finding_open", ("enter", "right", "l"), "Go to its steps", "", "findings", footer="steps"),
    Action("evidence_step", ("enter",), "Show these steps", "In all panels of Live", "finding", footer="show step"),
    Action("finding_back", ("left", "h"), "Back to the findings", "", "finding"),
)

_NAMES = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "full_stop": ".",
    "comma": ",",
    "space": "Space",
    "escape": "Esc",
    "enter": "Enter",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "delete": "Del",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "f1": "F1",
}
_TYPED = {name: key for key, name in _NAMES.items()}


def key_name(key: str) -> str:
    """A key as people write it: `ctrl+p` is ^P, `question_mark` is ?."""
    if key.startswith("ctrl+"):
        return "^" + key[5:].upper()
    return _NAMES.get(key, key)


_ONLY_IN = {LIVE: "only on a running engine; this is a recording", REPLAY: "only in a replay of a recording"}


class Registry:
    """A mode's actions with a user's keys. Raises `ActionError` when two actions would answer to one key."""

    def __init__(self, overrides: Mapping[str, Iterable[str]] | None = None, mode: str = LIVE) -> None:
        by_id = {action.id: action for action in ACTIONS}
        for name, keys in (overrides or {}).items():
            if name not in by_id:
                raise ActionError(f"no action is called {name!r}; the actions are {', '.join(by_id)}")
            by_id[name] = replace(by_id[name], keys=tuple(_key(key) for key in keys))
        self._elsewhere = [action for action in by_id.values() if action.mode not in ("", mode)]
        by_id = {name: action for name, action in by_id.items() if action.mode in ("", mode)}
        self.actions = tuple(by_id.values())
        self._by_key = _index(self.actions)
        self._by_id = by_id

    def __getitem__(self, name: str) -> Action:
        return self._by_id[name]

    def find(self, key: str, scope: str) -> Action | None:
        """What a key means while a panel of `scope` has the focus."""
        for place in (scope, PANEL, GLOBAL):
            action = self._by_key.get((place, key))
            if action is not None:
                return action
        return None

    def why_nothing(self, key: str) -> str | None:
        """Why a key does nothing here that does something in the other mode."""
        found = next((action for action in self._elsewhere if key in action.keys), None)
        return None if found is None else f"{found.title}: {_ONLY_IN[found.mode]}"

    def of_scope(self, scope: str) -> list[Action]:
        return [action for action in self.actions if action.scope == scope]


def _index(actions: Iterable[Action]) -> dict[tuple[str, str], Action]:
    by_key: dict[tuple[str, str], Action] = {}
    for action in actions:
        for key in action.keys:
            # A digit, or any key that works everywhere, must not mean something else in one panel.
            for place in (action.scope, GLOBAL, PANEL):
                other = by_key.get((place, key))
                if other is not None:
                    raise ActionError(f"{key_name(key)} is bound to both {other.id} and {action.id}")
            if action.scope == GLOBAL:
                clash = next((by_key[place, key] for place in SCOPES if (place, key) in by_key), None)
                if clash is not None:
                    raise ActionError(f"{key_name(key)} is bound to both {clash.id} and {action.id}")
            by_key[action.scope, key] = action
    return by_key


def load_keymap(path: Path) -> dict[str, list[str]]:
    """A user's `keys.toml`: `action = "key"` or a list of keys. Raises `ActionError`; no file is an empty map."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ActionError(f"{path.name} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ActionError(f"{path.name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ActionError(f"{path.name} is nested too deeply") from None
    keymap = {}
    for name, keys in raw.items():
        listed = [keys] if isinstance(keys, str) else keys
        if not isinstance(listed, list) or not all(isinstance(key, str) for key in listed):
            raise ActionError(f"{path.name}: {name} must be a key or a list of keys")
        keymap[name] = listed
    return keymap


def _key(name: str) -> str:
    """Textual's name of a key written by a person."""
    if name.startswith("^") and len(name) == 2:
        return f"ctrl+{name[1].lower()}"
    return _TYPED.get(name, name)
