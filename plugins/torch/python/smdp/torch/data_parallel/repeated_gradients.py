"""Gradients that come several times in one backward, as with reentrant checkpoints and a static graph."""

from __future__ import annotations


class RepeatedGradients:
    """Learns in the first backward which gradients come again, so that later ones wait for the last time.

    Args:
        is_static: Gradients may come again, the same ones in every backward.

    Attributes:
        is_static: The same; it may be set before the first backward.
    """

    def __init__(self, is_static: bool) -> None:
        self.is_static = is_static
        self._seen: set[int] = set()  # in this backward
        self._known: set[int] | None = None  # in those before; None before the first

    def may_come_again(self, index: int) -> bool:
        """Returns whether a gradient may come again before the end of backward."""
        return self.is_static and (self._known is None or index in self._known)

    def come_again(self, index: int, name: str, *, is_sent: bool) -> None:
        """Takes note of a gradient that comes again.

        Args:
            index: The parameter's.
            name: The parameter's.
            is_sent: The reducer has been handed the gradient.

        Raises:
            RuntimeError: It must not come again, or it has been handed over already.
        """
        if self.is_static and not is_sent:
            self._seen.add(index)
            return
        if self.is_static:
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} came more often than in"
                " the first backward: with static_graph=True they must be alike."
            )
        raise RuntimeError(
            "[smdp] a parameter got its gradient twice in one backward (reentrant checkpointing or a "
            "shared graph: use torch.utils.checkpoint with use_reentrant=False, or static_graph=True), "
            "or the backward before this one has failed half-way (start again from a checkpoint)."
        )

    def learn(self) -> None:
        """Takes what has come again in this backward for what comes again in every one."""
        if self.is_static:
            self._known = self._seen | (self._known or set())

    def forget(self) -> None:
        """Ends a backward."""
        self._seen.clear()
