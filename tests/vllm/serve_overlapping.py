"""`vllm serve` on the CPU with asynchronous scheduling, which that platform turns off: for tests only."""

from __future__ import annotations


def main() -> None:
    from vllm.entrypoints.cli.main import main as serve
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: type, config: object) -> None:
        original(cls, config)
        config.scheduler_config.async_scheduling = True  # type: ignore[attr-defined]

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[assignment]
    serve()


if __name__ == "__main__":
    main()
