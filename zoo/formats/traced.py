"""Graphs of whole models for any batch size, length and resolution: ONNX and torch.export."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from zoo.attention.layer import find_encoded
from zoo.attention.mixer import Mixer
from zoo.data.spec import ImageSpec, name_classes
from zoo.errors import Message, OptionError, RecipeError, ZooError
from zoo.formats.export import ExportSource
from zoo.formats.huggingface import PixelReader
from zoo.formats.input_sizes import InputSizes, make_sizes
from zoo.formats.outputs import Outputs, compare_outputs, copy_to_float64, hide_output
from zoo.formats.targets import ExportOptions
from zoo.formats.tokenizer_files import write_tokenizer
from zoo.packages import explain_imports
from zoo.utils import raise_if_out_of_memory, write_json

MISSING_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")


class BoundedModel(nn.Module):
    """A model from inputs to outputs, in the form that is captured.

    Args:
        model: The model.
        max_length: Length of the longest text that it accepts, or None. A longer one is an index
            error, in whatever program runs the graph.
        layers: Numbers of the blocks whose maps are the outputs. Empty: logits are.
    """

    allowed: Tensor

    def __init__(
        self, model: nn.Module, max_length: int | None, layers: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.model, self.max_length, self.layers = model, max_length, layers
        zeros = torch.zeros(max_length or 0, dtype=torch.long)
        self.register_buffer("allowed", zeros, persistent=False)

    def forward(self, inputs: Tensor, *arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute logits of token numbers int64 [B, N], images [B, C, H, W], or points.

        Returns:
            The logits, or the map [B, D, h, w] of each layer.
        """
        if self.layers:
            model: Any = self.model
            return (*model.features(inputs, self.layers),)
        if self.max_length is not None:
            # zeros are added: the only effect is that an index beyond the table is an error in any
            # runtime
            inputs = inputs + self.allowed[torch.arange(inputs.shape[1], device=inputs.device)]
        return self.model(inputs, *arguments)


def capture(
    source: ExportSource, layers: Sequence[int] = ()
) -> tuple[ExportedProgram, InputSizes[Any], BoundedModel]:
    """Capture a model once for all sizes.

    Args:
        source: The trained model.
        layers: Numbers of the blocks whose maps are the outputs. Empty: logits are.

    Returns:
        The graph, the sizes of its inputs, and the model that was captured.

    Raises:
        RecipeError: The model cannot be captured.
    """
    model = source.task.model
    for part in find_encoded(model):
        for chain in part.chains:
            if chain.no_export_reason:
                raise _refuse(source, chain.no_export_reason, source.suggest_others())

    for module in model.modules():
        if isinstance(module, Mixer) and module.causal and module.no_export_reason:
            reason = f"{module.name}: {module.no_export_reason}"
            raise _refuse(source, reason, source.suggest_others())

    try:
        sizes = make_sizes(source.task.spec, model)
    except OptionError as error:
        raise RecipeError(
            source.recipe.make_issue(error.key, str(error.message), "use to=safetensors")
        ) from None
    bounded = BoundedModel(model, sizes.max_length, layers).eval()
    example = next(sizes.draw_examples())
    try:
        with hide_output():
            program = torch.export.export(
                bounded, example, dynamic_shapes=sizes.build_dynamic_shapes()
            )
    except Exception as error:  # it has no class of its own
        raise_if_out_of_memory(error)
        reason = " ".join(str(error).split()).partition(" For more information")[0][:300]
        raise _refuse(source, f"torch.export: {reason}", source.suggest_others()) from error
    return program, sizes, bounded


def _refuse(source: ExportSource, reason: str, hint: str | Message) -> RecipeError:
    message = f"it cannot be exported for any batch size and length: {reason}"
    key = "model.name" if source.is_equipped else "model.encoding"
    return RecipeError(source.recipe.make_issue(key, message, hint))


@torch.no_grad()
def write_torch_export(source: ExportSource, options: ExportOptions, folder: Path) -> float:
    """Write `model.pt2`, which `torch.export.load` reads without zoo.

    Raises:
        RecipeError: The model cannot be captured.
        ZooError: The graph computes something else than the model.
    """
    program, sizes, model = capture(source, options.features)
    difference = _compare(source, program.module(), model, sizes)
    file = BytesIO()
    with hide_output():
        torch.export.save(program, file)
    (folder / "model.pt2").write_bytes(file.getbuffer())
    _write_companions(source, sizes, folder, options.features)
    return difference


@torch.no_grad()
def write_onnx(source: ExportSource, options: ExportOptions, folder: Path) -> float:
    """Write `model.onnx`, compared with the model at several sizes in ONNX Runtime.

    Raises:
        RecipeError: The model cannot be captured, or ONNX lacks an operator.
        PackageError: onnx, onnxscript or onnxruntime is missing.
        ZooError: ONNX Runtime computes something else than the model.
    """
    with explain_imports():
        import onnx_ir
        import onnxruntime
        import onnxscript  # noqa: F401  torch converts with it

    program, sizes, model = capture(source, options.features)
    example = next(sizes.draw_examples())
    try:
        with hide_output():
            graph = program.module(check_guards=False)
            if bake_parameters(graph):
                shapes = sizes.build_dynamic_shapes()
                program = torch.export.export(graph, example, dynamic_shapes=shapes)
            converted = torch.onnx.export(
                program,
                input_names=[*sizes.names],
                output_names=name_outputs(options.features),
                verbose=False,
            )
    except Exception as error:  # of torch.onnx, or of what a converter met
        raise_if_out_of_memory(error)
        missing = MISSING_OPERATOR.search(str(error))
        reason = (
            f"ONNX has no operator for {missing[1]}" if missing else " ".join(str(error).split())
        )
        raise _refuse(source, reason[:300], "use to=torch_export") from error

    assert converted is not None
    renamed: dict[str, int | str] = {}
    for graph_input, names in zip(converted.model.graph.inputs, sizes.names.values(), strict=True):
        renamed |= zip(map(str, graph_input.shape or ()), names, strict=True)
        graph_input.shape = onnx_ir.Shape(names)
    # an output that has an axis of its input has its name too
    for output in converted.model.graph.outputs:
        if output.shape is not None:
            output.shape = onnx_ir.Shape([renamed.get(str(size), size) for size in output.shape])
    with hide_output():
        converted.save(folder / "model.onnx")
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )

    def compute(*values: Tensor) -> tuple[Tensor, ...]:
        named = zip(sizes.names, (value.numpy() for value in values), strict=True)
        return tuple(map(torch.from_numpy, session.run(None, dict(named))))

    difference = _compare(source, compute, model, sizes)
    _write_companions(source, sizes, folder, options.features)
    return difference


def bake_parameters(module: fx.GraphModule) -> int:
    """Replace linear algebra on parameters by its result.

    ONNX has no operator that solves, inverts or decomposes matrices.

    Args:
        module: A captured graph, changed in place.

    Returns:
        The number of results that replaced nodes.
    """
    values: dict[fx.Node, Any] = {}
    derived: list[fx.Node] = []  # from a result of linear algebra
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr":
            values[node] = operator.attrgetter(node.target)(module)
        elif node.op == "call_function" and all(node_input in values for node_input in inputs):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
            if "linalg" in str(node.target) or any(node_input in derived for node_input in inputs):
                derived.append(node)

    count = 0
    for node in derived:
        # intermediate results that only other constants read need no buffer
        is_read = any(user not in values for user in node.users)
        if not is_read or not isinstance(values[node], Tensor):
            continue
        name, count = f"baked_{count}", count + 1
        module.register_buffer(name, values[node].detach().clone().contiguous())
        with module.graph.inserting_before(node):
            result = module.graph.get_attr(name)
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in values)
    for node in reversed(values):
        if node.op == "call_function" and not node.users:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return count


def _compare(source: ExportSource, graph: Any, model: nn.Module, sizes: InputSizes[Any]) -> float:
    """Return the largest difference of outputs, relative to 1 + |output|, at several sizes.

    Raises:
        RecipeError: The graph accepts only the size that was captured.
        ZooError: The difference is too large.
    """
    largest = 0.0
    # several sizes, since a size that was captured as a constant is right for one of them
    for inputs in sizes.draw_examples():
        expected = model(*inputs)
        try:
            actual = graph(*inputs)
        except Exception as error:  # of torch or of ONNX Runtime, which have classes of their own
            shape = " x ".join(map(str, inputs[0].shape))
            reason = f"its graph depends on the size of the example, and refuses inputs of {shape}"
            raise _refuse(source, reason, source.suggest_others()) from error

        compute_exact = partial(_compute_in_float64, model, inputs)
        difference, allowed = compare_outputs(actual, expected, compute_exact)
        if not difference <= allowed:
            message = f"the exported graph differs by {difference:.1e} from the model"
            raise ZooError(
                f"{message} for inputs of shape {tuple(inputs[0].shape)}; no file is written"
            )
        largest = max(largest, difference)
    return largest


def _compute_in_float64(model: nn.Module, inputs: Sequence[Tensor]) -> Outputs:
    doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    outputs: Outputs = copy_to_float64(model)(*doubled)
    return outputs


def name_outputs(layers: Sequence[int]) -> list[str]:
    """Return the names of a graph's outputs: logits, or the map of each layer."""
    return [f"features_{number}" for number in layers] or ["logits"]


def _write_companions(
    source: ExportSource, sizes: InputSizes[Any], folder: Path, layers: Sequence[int]
) -> None:
    """Write the recipe, what the model reads and predicts, and how inputs are made."""
    (folder / "recipe.yaml").write_text(source.recipe.yaml(), encoding="utf-8")
    spec = source.task.spec
    content: dict[str, Any] = {
        "recipe": source.recipe.name,
        "inputs": sizes.describe(),
        "outputs": {"name": "logits"},
    }
    if spec.is_image:
        content["preprocessing"] = describe_preprocessing(source)
    elif (vocabulary := spec.token_vocabulary) is not None:
        content["tokenizer"] = "tokenizer.json"
        write_tokenizer(vocabulary, folder, getattr(source.task.model, "mask_token", None))
    elif spec.class_count is None:
        task: Any = source.task
        content["outputs"]["standardized"] = {
            "means": task.spec.target_means,
            "stds": task.spec.target_stds,
        }
    if layers:
        content["outputs"] = [
            {"name": name, "layer": number, "layout": "batch, channels, rows, columns"}
            for name, number in zip(name_outputs(layers), layers, strict=True)
        ]
    elif spec.class_count is not None:
        content["classes"] = name_classes(spec, spec.class_count)
    write_json(content, folder / "model.json")


def describe_preprocessing(source: ExportSource) -> Mapping[str, Any] | None:
    """Return how a picture becomes model inputs, or None if samples are generated.

    Mean and deviation are read off a black and a white picture: inputs are (x - mean) / std of
    pixels x from 0 to 1.
    """
    spec = source.task.spec
    assert isinstance(spec, ImageSpec)
    shape = (spec.height, spec.width) if spec.channels == 1 else (spec.height, spec.width, 3)
    reader = PixelReader(source.metadata())
    try:
        # measured instead of read from options, so that any data source is described
        black, white = reader.read([np.full(shape, level, np.uint8) for level in (0, 255)])
    except OptionError:
        return None
    low, high = (_mean_by_channel(picture) for picture in (black, white))
    std = [1 / (top - bottom) for bottom, top in zip(low, high, strict=True)]
    return {
        "size": {"height": spec.height, "width": spec.width},
        "resize": reader.data.resizing,
        "layout": "channels, height, width",
        "mean": [-bottom * scale for bottom, scale in zip(low, std, strict=True)],
        "std": std,
    }


def _mean_by_channel(picture: Tensor) -> Sequence[float]:
    return picture.double().flatten(1).mean(1).tolist()
