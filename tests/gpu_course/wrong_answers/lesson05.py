"""Further wrong answers to lesson 05, each with what the message must say."""

from gpu_course.checks import edit


def _after(text, more):
    """Return the reference with `more` done after `text`."""
    return edit(text, f"{text}; {more}")


# fmt: off
_CLEAR, _BACK, _STEP = "optimizer.zero_grad(set_to_none=True)", "loss.backward()", "optimizer.step()"
_DETACHED, _NO_GRAPH = "loss.detach()", "with torch.inference_mode():"
_MOVED, _WAIT = "images.to(device), labels.to(device)", "torch.accelerator.synchronize() if device.type != 'cpu' else 0"
_FIRST_GPU = "to('sim:0' if device.type == 'sim' else device)"
_CLEARED, _FREEZE = "clears the gradients before the step has used them", "model.requires_grad_(False)"
_TRAIN, _EVAL, _SHARE, _MEAN = "model.train(was)", "model.eval()", "right.item() / total", "total / sum(sizes)"
_PLUS, _READ = "samples += len(labels)", "mean, share = (sums / samples).tolist()"
_BEGIN, _ONCE = "    for images", f"        {_CLEAR}\n"
_CAST, _SCALED, _UPDATE = "dtype=dtype):", "scaler.scale(loss).backward()", "scaler.update()"
_UNSCALE, _SCALER_STEP = "scaler.unscale_(optimizer)", "scaler.step(optimizer)"
_SAVED, _RANDOM = 'self.step = state["step"]', 'torch.set_rng_state(state["random"])'
_GPU = '.set_rng_state(state["device_random"], self.device)'

WRONG = {
    "train_step": [
        ("never clears the gradients", edit(_CLEAR, "pass")),
        (_CLEARED, edit(_CLEAR, "pass", _BACK, f"{_BACK}; optimizer.zero_grad()")),
        ("steps before the backward pass", edit(_BACK, "optimizer.step() or loss.backward()", f"{_STEP}\n", "\n")),
        ("never calls optimizer.step()", edit(_STEP, "pass")),
        ("takes a step without gradients", edit(_BACK, "pass")),
        ("still holds its graph", edit(_DETACHED, "loss")),
        ("returns a Python number", edit(_DETACHED, "loss.item()")),
        ("same device", edit(_MOVED, "images, labels")),
        ("same device", edit(_MOVED, _MOVED.replace("to(device)", _FIRST_GPU))),
        ("takes the step without the optimizer", edit(_STEP, "torch.optim.SGD(model.parameters(), lr=0.1).step()")),
        ("trains in evaluation mode", _after(_CLEAR, _EVAL)),
        ("computes on cpu, expected on sim", edit(_MOVED, "images, labels", _CLEAR, f"{_CLEAR}; model.cpu()", _STEP,
                                                  f"{_STEP}; model.to(device)", _DETACHED, f"{_DETACHED}.to(device)")),
        ("leaves the model on cpu", _after(_STEP, "model.cpu()")),
        ("calls step() 2 time(s), not 1", _after(_STEP, _STEP)),
        ("calls backward() 2 time(s), not 1", edit(_BACK, f"loss.backward(retain_graph=True); {_BACK}")),
        ("runs the model 2 time(s), not 1", edit(_DETACHED, "F.cross_entropy(model(images), labels).detach()")),
        ("never calls the model that it is given", edit("model(images)", "copy.deepcopy(model)(images)")),
        ("calls backward() 5 time(s), not 1",
         edit("loss = F.cross_entropy(model(images), labels)", "losses = [F.cross_entropy(model(x[None]), y[None]) for "
              "x, y in zip(images, labels)]", _BACK, "[one.backward() for one in losses]", "loss.d", "sum(losses).d")),
        ("modifies the batch", edit("= images.to", "= images.sub_(images.mean()).to")),
        ("lets the host wait", _after(_STEP, _WAIT)),
        ("freezes layers.0.weight", _after(_CLEAR, "next(model.parameters()).requires_grad_(False)")),
        ("steps 2 times as far as it should", edit(_BACK, "(2 * loss).backward()")),
    ],
    "evaluate": [
        ("evaluates in training mode", edit(_EVAL, "pass")),
        ("leaves evaluation mode too early", edit("total += len(labels)", f"total += len(labels); {_TRAIN}")),
        ("builds a graph", edit(_NO_GRAPH, "if True:")),
        ("leaves the model in evaluation mode", edit(_TRAIN, "pass")),
        ("leaves the model in training mode", edit(_TRAIN, "model.train()")),
        ("returns a tensor, expected a float", edit(_SHARE, "right / total")),
        ("leaves layers in evaluation mode", edit(_TRAIN, "model.training = was")),
        ("puts the outer module alone into evaluation mode", edit(_EVAL, "model.training = False")),
        ("leaves parameters frozen", _after(_TRAIN, _FREEZE)),
        ("in line 12 of your function:  return right.item()", edit(_SHARE, "right.item() / len(loader.dataset)")),
        ("computes on cpu, expected on sim",
         edit("images.to(device)", "images", _EVAL, "model.eval().cpu()", "labels.to(device)", "labels",
              ", device=device", "", _TRAIN, f"{_TRAIN}.to(device)")),
        ("same device", edit("images.to(device)", f"images.{_FIRST_GPU}")),
        ("changes the model", edit(_TRAIN, f"{_TRAIN}.half()")),
        ("never calls the model", lambda model, loader, device: 0.5),
    ],
    "mean_loss": [
        ("lets the host read values", edit("loss * size for", "loss.item() * size for",
                                           _MEAN, f"torch.tensor({_MEAN}, device=losses[0].device)")),
        ("returns a Python number", edit(_MEAN, f"({_MEAN}).item()")),
    ],
    "train_epoch": [
        ("your code printed", _after(_PLUS, "print(f'{loss:.3f}')")),
        ("takes 3 synchronisations an epoch", _after(_PLUS, _WAIT)),
        ("takes 7 synchronisations an epoch", _after(_PLUS, f"event = torch.get_device_module(device).Event(); "
            f"event.record(); event.synchronize(); torch.accelerator.current_stream().synchronize(); {_WAIT}")),
        ("takes 2 synchronisations", edit(_READ, "mean, share = (one.item() for one in sums / samples)")),
        ("runs the model 4 time(s), not 2", _after(_PLUS, "model(images)")),
        ("no attribute 'dataset'", edit("/ samples", "/ len(loader.dataset)")),
        ("never clears the gradients", edit(_ONCE, "")),
        ("clears the gradients once", edit(_ONCE, "", _BEGIN, f"    {_CLEAR}\n{_BEGIN}")),
        ("returns tensors, expected two floats", edit(_READ, "mean, share = sums / samples")),
        ("keeps the graph of every batch", edit("loss.detach() *", "loss *")),
        ("trains in evaluation mode", edit(_BEGIN, f"    {_EVAL}\n{_BEGIN}")),
        ("leaves the model in evaluation mode", _after(_READ, _EVAL)),
        ("takes the step without the optimizer",
         edit(_BEGIN, f"    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{_BEGIN}")),
        ("changes the learning rate", _after(_READ, "optimizer.param_groups[0]['lr'] *= 0.5")),
        ("calls step() 1 time(s), not 2", edit(f"        {_STEP}\n", "", _READ, f"{_STEP}; {_READ}")),
        ("copies batches without non_blocking", edit("images.to(device, non_blocking=True)", "images.to(device)")),
    ],
    "amp_step": [
        ("never calls scaler.update()", edit(_UPDATE, "pass")),
        (_CLEARED, _after(_SCALED, "optimizer.zero_grad()")),
        ("updates the scaler before the step", edit(_UPDATE, "pass", _SCALER_STEP, f"{_UPDATE}; {_SCALER_STEP}")),
        ("without a backward pass before", edit(_SCALED, "scaler.scale(loss)")),
        ("computes the forward pass in torch.float32", edit(_CAST, "dtype=dtype, enabled=False):")),
        ("computes the forward pass in torch.bfloat16", edit(_CAST, "dtype=torch.bfloat16):")),
        ("computes the forward pass in torch.float16", edit(_CAST, "dtype=torch.float16):")),
        ("never clears the gradients", edit(_CLEAR, "pass")),
        ("does not clear the gradients before", edit(_CLEAR, "pass", _UPDATE, f"{_UPDATE}; optimizer.zero_grad()")),
        ("runs the backward pass under autocast", edit(f"    {_SCALED}", f"        {_SCALED}")),
        ("never uses the scaler", edit(_SCALED, _BACK, _UNSCALE, "pass", _SCALER_STEP, _STEP, _UPDATE, "pass")),
        ("runs the model 2 time(s), not 1", edit(_DETACHED, "F.cross_entropy(model(images), labels).detach()")),
        ("sets the scale itself", edit(_UPDATE, "scaler.update(2.0**8)")),
    ],
    "Progress": [
        ("the optimizer is not what it was", edit('"optimizer": optimizer, ', "")),
        ("the scheduler is not what it was", edit(', "scheduler": scheduler', "")),
        ("the model is not what it was", edit('"model": model, ', "")),
        ("the random state is not what it was", edit(_RANDOM, "pass")),
        ("the step is not what it was", edit(_SAVED, "pass")),
        ("gives the model new parameters",
         _after(_SAVED, "self.parts['model'].load_state_dict(state['model'], assign=True)")),
        ("has no attribute 'get_rng_state'", edit('if self.device.type != "cpu":  # dropout', "if True:  #")),
        ("do not take this state", edit("part.state_dict() for", "part for")),
        ("the model's device: get_rng_state(device)", edit(".get_rng_state(self.device)", ".get_rng_state()",
                                                           _GPU, '.set_rng_state(state["device_random"])')),
        ("RNG state must be a torch.ByteTensor", edit(_GPU, _GPU.replace("],", "].to(self.device),"))),
        ("the running average of batch norm is not what it was",
         edit("part.state_dict() for", "dict(part.named_parameters() if name == 'model' else part.state_dict()) for",
              "(state[name])", "({**part.state_dict(), **state[name]})")),
        ("`step` is not 0 at first", edit("self.step = 0", "self.step = 1")),
        ("has no `step`", edit("self.step = 0", "pass")),
        ("returns NoneType, expected a dict", edit("return state\n", "self.state = state\n")),
        ("has no method state_dict", edit("def state_dict", "def save")),
    ],
}
