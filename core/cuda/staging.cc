#include "core/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"

namespace mantissa::cuda {
namespace {

// Large uploads, such as initial weights, go in pieces.
constexpr size_t kPieceBytes = size_t{4} << 20;
// How far the host may be ahead: several steps' worth of input, so that it does not wait inside a step.
constexpr size_t kMostBytes = size_t{64} << 20;

}  // namespace

Staging::~Staging() {
  for (const Slot& slot : slots_) free_pinned(slot.data);
}

Staging::Slot& Staging::free_slot(size_t bytes) {
  const auto is_free = [](const Slot& slot) { return slot.passed == nullptr || slot.passed->done(); };
  const auto fits = [&](const Slot& slot) { return slot.bytes >= bytes && is_free(slot); };
  auto found = std::find_if(slots_.begin(), slots_.end(), fits);
  if (found == slots_.end() && total_bytes_ + bytes <= kMostBytes) {
    slots_.emplace_back();
    found = std::prev(slots_.end());
  }
  if (found == slots_.end()) found = std::find_if(slots_.begin(), slots_.end(), is_free);
  if (found == slots_.end()) {
    std::rotate(slots_.begin(), std::next(slots_.begin()), slots_.end());  // the oldest is waited for and goes last
    found = std::prev(slots_.end());
    found->passed->synchronize();
  }
  found->passed.reset();
  if (found->bytes < bytes) grow(*found, bytes);
  return *found;
}

void Staging::grow(Slot& slot, size_t bytes) {
  if (slot.data != nullptr) free_pinned(slot.data);
  slot.data = nullptr;
  total_bytes_ -= std::exchange(slot.bytes, 0);
  slot.data = static_cast<std::byte*>(allocate_pinned(bytes));
  slot.bytes = bytes;
  total_bytes_ += bytes;
}

void Staging::upload(const void* host, void* device, size_t bytes, CudaStream& stream) {
  // Repeated, it would send whatever the slot holds by then.
  MANTISSA_CHECK(!is_capturing(stream.handle()), "[staging] an upload cannot be captured");
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, bytes - begin);
    Slot& slot = free_slot(count);
    std::memcpy(slot.data, static_cast<const std::byte*>(host) + begin, count);
    copy_async(static_cast<std::byte*>(device) + begin, slot.data, count, CopyKind::kHostToDevice, stream.handle());
    slot.passed = std::make_unique<CudaEvent>(stream.handle());
  }
}

void Staging::download(const void* device, void* host, size_t bytes, CudaStream& stream) {
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, bytes - begin);
    Slot& slot = free_slot(count);
    copy_async(slot.data, static_cast<const std::byte*>(device) + begin, count, CopyKind::kDeviceToHost,
               stream.handle());
    stream.synchronize();
    std::memcpy(static_cast<std::byte*>(host) + begin, slot.data, count);
  }
}

}  // namespace mantissa::cuda
