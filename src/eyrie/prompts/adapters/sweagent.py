"""nebius/SWE-agent-trajectories: an agent's run on one repository issue, as `trajectory` of role and text.

Roles are system, user and ai; the system turn has its text in `system_prompt`. Many rows run the same issue, and the
prompt is the issue: the id is `instance_id`, so that one of them is kept. The later user turns are what the recorded
agent's commands printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyrie.prompts.rows import Adapter, BadRow, Drop, Message, PromptRow, text_column

ROLES = ("system", "user", "ai")


def adapt(raw: Mapping[str, Any]) -> PromptRow | Drop:
    steps = raw.get("trajectory")
    if not isinstance(steps, list):
        raise BadRow(f"column trajectory is {type(steps).__name__}, not a list")
    system: list[Message] = []
    user: list[Message] = []
    for step in steps:
        role = step.get("role") if isinstance(step, Mapping) else None
        if role not in ROLES:
            raise BadRow(f"a step's role is {role!r}; known are {', '.join(ROLES)}")
        text = step.get("text") or ""
        if role == "system" and not user:
            system = [{"role": "system", "content": step.get("system_prompt") or text}]
        elif role == "user":
            user.append({"role": "user", "content": text})
    if not user:
        return Drop("empty", "no user turn")
    return PromptRow(id=text_column(raw, "instance_id"), messages=[*system, user[0]], turns=user[1:])


ADAPTER = Adapter(columns=(("instance_id", "trajectory"),), adapt=adapt)
