"""The same weight for each target of a step, over accumulated batches and over processes."""

# torch reads the annotations of a hook, so they are not postponed in this file.

from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel


class TargetWeights:
    """Makes the gradients of a step those of the mean loss over all of its targets.

    A step may consist of several batches in several processes, each with another number of targets.
    The backward pass of a batch starts from the sum of its losses. Once the gradients of a step are
    complete, they are divided by its number of targets. DDP reduces the number together with
    gradients, so that nothing else is communicated for it.

    Args:
        model: The model that is trained, as its strategy has wrapped it.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._own: Tensor | None = None  # of all batches of the step so far, in this process
        self._mean: Tensor | None = None  # the mean over processes, once it is known
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(model.process_group, self.reduce)

    def add(self, count: Tensor) -> None:
        """Add the number of targets of a batch whose backward pass begins, a scalar."""
        self._own = count if self._own is None else self._own + count

    def reduce(
        self,
        group: distributed.ProcessGroup,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> Future[Tensor]:
        """Average gradients over processes, and with the first of them the number of targets."""
        gradients = bucket.buffer()
        # the first bucket is the smallest; half precision would round the number
        if bucket.index() > 0 or self._own is None or gradients.dtype != self._own.dtype:
            return allreduce_hook(group, bucket)

        joined = torch.cat([gradients, self._own.view(1)]).div_(group.size())
        reduced = distributed.all_reduce(joined, group=group, async_op=True)

        def split(done: Future[list[Tensor]]) -> Tensor:
            (averaged,) = done.value()
            self._mean = averaged[-1]
            return gradients.copy_(averaged[:-1])

        return reduced.get_future().then(split)

    def divide_gradients(self, weights: Iterable[Tensor]) -> None:
        """Divide the gradients of a step by its number of targets. Every process must call it."""
        if self._own is None:
            return
        mean = self._mean
        if mean is None:
            mean = self._own
            if distributed.is_initialized():
                distributed.all_reduce(mean)
                # a mean, as DDP averages gradients too
                mean = mean / distributed.get_world_size()
        self._own = self._mean = None

        # without any target the gradients are 0 already
        factor = 1 / torch.where(mean == 0, 1, mean)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        local = [
            gradient.to_local() if isinstance(gradient, DTensor) else gradient
            for gradient in gradients
        ]
        torch._foreach_mul_(local, factor)
