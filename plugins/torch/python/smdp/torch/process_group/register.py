"""Registration with torch.distributed."""

from __future__ import annotations

from smdp_torch_autoload import register_backend


def register() -> None:
    """Makes the backend "smdp" known to torch.distributed. Calling it again does nothing.

    Raises:
        RuntimeError: torch was built without its distributed package.
    """
    if not register_backend():
        raise RuntimeError(
            "[smdp] this build of torch has no torch.distributed, which smdp needs. Install a build with it."
        )
