"""Output embeds at places where states are kept: who goes back there has the output, and runs no token for it."""

from __future__ import annotations

from inferlet_sdk.sequences.output_embed import OutputEmbed


class KeptOutputs:
    """Those of one sequence, by the number of tokens before the place."""

    def __init__(self) -> None:
        self._at: dict[int, OutputEmbed] = {}

    def keep(self, tokens: int, output: OutputEmbed) -> None:
        """Shares the output with the sequence, which has it now."""
        if tokens not in self._at:
            self._at[tokens] = OutputEmbed()
            output.share_with(self._at[tokens])

    def share_with(self, child: KeptOutputs) -> None:
        """A child has all of them, too."""
        for tokens, output in self._at.items():
            child.keep(tokens, output)

    def take(self, queue: int, tokens: int, output: OutputEmbed) -> bool:
        """The sequence goes back to this place: it has the output that is kept there, if there is one."""
        for behind in [one for one in self._at if one > tokens]:
            self.let_go(queue, behind)
        if found := self._at.get(tokens):
            output.release(queue)
            found.share_with(output)
        return found is not None

    def let_go(self, queue: int, tokens: int) -> None:
        """Does not keep the output at a place any more, if it did."""
        if found := self._at.pop(tokens, None):
            found.release(queue)

    def close(self, queue: int) -> None:
        """Keeps none."""
        for tokens in list(self._at):
            self.let_go(queue, tokens)
