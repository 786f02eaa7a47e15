// Registers a CUDA device in a CPU build of torch. It has no memory and no kernels: tensors on it
// are fakes, and autograd and autocast treat them as they treat tensors on a GPU.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

const Device only(c10::kCUDA, 0);
const Stream only_stream(Stream::DEFAULT, only);

// The base class answers with device -1, and refuses events, which a backward pass records.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::kCUDA> {
  Device getDevice() const override { return only; }
  Device exchangeDevice(Device) const override { return only; }
  Stream getStream(Device) const noexcept override { return only_stream; }
  Stream getNewStream(Device, int) const override { return only_stream; }
  Stream exchangeStream(Stream) const noexcept override { return only_stream; }
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// Autograd asks these for an accelerator. torch finds the class by its name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return only.index(); }
};

} // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
