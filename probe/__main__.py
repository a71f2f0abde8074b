"""`python -m probe` is `latency-probe`."""

from probe.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
