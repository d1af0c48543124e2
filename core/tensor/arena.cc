#include "core/tensor/arena.h"

#include "core/base/round_up.h"

namespace mantissa {

struct Arena::State {
  std::shared_ptr<Storage> region;
  // Holes between blocks, and the tail after the last block. The tail is not a hole: if best fit could choose it,
  // addresses would depend on the size of the region.
  std::map<size_t, size_t> holes_by_offset;           // offset -> bytes
  std::set<std::pair<size_t, size_t>> holes_by_size;  // (bytes, offset): best fit, ties by lowest offset
  size_t tail = 0;                                    // its offset
  size_t capacity = 0;
  size_t used = 0;
  size_t peak = 0;

  void insert(size_t offset, size_t bytes) {
    holes_by_offset.emplace(offset, bytes);
    holes_by_size.emplace(bytes, offset);
  }
  void erase(std::map<size_t, size_t>::iterator hole) {
    holes_by_size.erase({hole->second, hole->first});
    holes_by_offset.erase(hole);
  }

  // Returns the offset of the best-fitting hole, else of the tail; SIZE_MAX if neither has room.
  size_t take(size_t bytes) {
    size_t offset = tail;
    if (const auto fit = holes_by_size.lower_bound({bytes, 0}); fit != holes_by_size.end()) {
      const size_t have = fit->first;
      offset = fit->second;
      erase(holes_by_offset.find(offset));
      if (have > bytes) insert(offset + bytes, have - bytes);
    } else {
      if (capacity - tail < bytes) return SIZE_MAX;
      tail += bytes;
      peak = std::max(peak, tail);
    }
    used += bytes;
    return offset;
  }

  void give(size_t offset, size_t bytes) {
    used -= bytes;
    auto next = holes_by_offset.lower_bound(offset);
    if (next != holes_by_offset.end() && offset + bytes == next->first) {
      bytes += next->second;
      const auto merged = next++;
      erase(merged);
    }
    if (next != holes_by_offset.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        bytes += previous->second;
        erase(previous);
      }
    }
    if (offset + bytes == tail) {
      tail = offset;
    } else {
      insert(offset, bytes);
    }
  }
};

Arena::Arena(std::shared_ptr<Storage> region) : state_(std::make_shared<State>()) {
  state_->capacity = region->bytes() / kAlignmentBytes * kAlignmentBytes;
  MANTISSA_CHECK(state_->capacity > 0, "[arena] the region must hold at least {} bytes, got {}", kAlignmentBytes,
                 region->bytes());
  state_->region = std::move(region);
}

Arena::~Arena() = default;

Tensor Arena::allocate(DType dtype, Shape shape, const char* what) {
  const size_t wanted = static_cast<size_t>(shape.numel() * size_bytes(dtype));
  const size_t bytes = std::max(round_up(wanted, kAlignmentBytes), kAlignmentBytes);
  const size_t offset = state_->take(bytes);
  if (offset == SIZE_MAX) {
    throw Error(
        ExitCode::kInternal,
        fmt::format("[arena] out of memory: {} {} of {} needs {} bytes; {} of {} bytes are in use. Use a smaller "
                    "micro-batch or a larger arena",
                    what, shape, dtype, bytes, used_bytes(), capacity_bytes()));
  }
  auto storage = std::make_shared<Storage>(state_->region->data() + offset, bytes, state_->region->device(),
                                           [state = state_, offset, bytes] { state->give(offset, bytes); });
  return Tensor(std::move(storage), dtype, shape);
}

void Arena::rewind() {
  MANTISSA_CHECK(state_->used == 0, "[arena] {} bytes of the step are still in use at its end", state_->used);
}

size_t Arena::used_bytes() const { return state_->used; }
size_t Arena::peak_bytes() const { return state_->peak; }
size_t Arena::capacity_bytes() const { return state_->region->bytes(); }

}  // namespace mantissa
