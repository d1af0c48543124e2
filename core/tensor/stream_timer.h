// StreamTimer: marks points in the order of a stream and tells the time between them.
#pragma once

#include <cstddef>
#include <memory>

namespace mantissa {

class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  // Marks the end of the work that the stream has been given so far. Returns the mark's number, from 0. Not while the
  // stream is captured.
  virtual size_t mark() = 0;
  // From one mark to another. Waits until the stream has passed both. ContractError if there is no such mark.
  virtual double milliseconds(size_t from, size_t to) = 0;
};

// By the host's clock: for devices whose calls have finished when they return.
std::unique_ptr<StreamTimer> make_host_timer();

}  // namespace mantissa
