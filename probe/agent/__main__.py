"""`python -m probe.agent`: the demo agent's process (see `probe.agent.server`)."""

from __future__ import annotations

from probe.agent.server import main

if __name__ == "__main__":
    main()
