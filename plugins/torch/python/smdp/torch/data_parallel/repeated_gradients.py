"""Gradients that come several times in one backward, as with reentrant checkpoints and a static graph."""

from __future__ import annotations


class RepeatedGradients:
    """Learns in the first backward which gradients come several times, so that later ones wait for the last.

    Args:
        is_static: Whether gradients may come several times, the same ones in every backward.

    Attributes:
        is_static: The argument. It may be changed before the first backward.
    """

    def __init__(self, is_static: bool) -> None:
        self.is_static = is_static
        self._seen: set[int] = set()  # in this backward
        self._known: set[int] | None = None  # in earlier ones; None before the first

    def may_come_again(self, index: int) -> bool:
        """Returns whether a gradient may come again before the end of backward."""
        return self.is_static and (self._known is None or index in self._known)

    def come_again(self, index: int, name: str, *, is_sent: bool) -> None:
        """Records a gradient that comes again in this backward.

        Args:
            index: The parameter's index.
            name: The parameter's name, for the message.
            is_sent: Whether the reducer already has the gradient.

        Raises:
            RuntimeError: The gradient may not come again, or the reducer already has it.
        """
        if self.is_static and not is_sent:
            self._seen.add(index)
            return
        if self.is_static:
            raise RuntimeError(
                f"[smdp] parameter {name!r} received its gradient more often than in the first backward."
                " With static_graph=True every backward must be alike. If backwards differ, remove it and"
                " call torch.utils.checkpoint with use_reentrant=False."
            )
        raise RuntimeError(
            f"[smdp] parameter {name!r} received its gradient twice in one backward. If the model uses"
            " reentrant checkpointing or a shared graph, call torch.utils.checkpoint with"
            " use_reentrant=False, or pass static_graph=True. If the previous backward failed midway, start"
            " again from a checkpoint."
        )

    def learn(self) -> None:
        """Expects the gradients that came again in this backward to do so in every later one."""
        if self.is_static:
            self._known = self._seen | (self._known or set())

    def forget(self) -> None:
        """Ends a backward."""
        self._seen.clear()
