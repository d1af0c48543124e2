// Stream: an ordered queue of work on one device. On the CPU every call has finished when it returns.
#pragma once

#include <cstddef>
#include <memory>
#include <thread>

namespace mantissa {

// A point in a stream's order. Opaque above the backend that made it.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;  // Whether the work before it has finished. Does not block.
  // Blocks the host until it has.
  virtual void synchronize() const {
    while (!done()) std::this_thread::yield();
  }
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual std::unique_ptr<Event> record() = 0;  // marks the end of the work queued so far
  virtual void wait(const Event& event) = 0;    // work queued on this stream from now on starts after `event`
  virtual void synchronize() = 0;               // blocks the host until all queued work has finished
};

// For devices and collectives whose work is done when a call returns.
class HostStream final : public Stream {
  class Passed final : public Event {
    bool done() const override { return true; }
  };

 public:
  std::unique_ptr<Event> record() override { return std::make_unique<Passed>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

// Work that was recorded once (Backend::capture) and can be queued repeatedly.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  virtual void launch() = 0;  // queues all of it on the stream that it was recorded on
};

// Marks points in a stream's order and measures the time between them.
class StreamTimer {
 public:
  virtual ~StreamTimer() = default;
  // Marks the end of the work queued so far. Returns the mark's number, from 0. Not while the stream is captured.
  virtual size_t mark() = 0;
  // Waits until the stream has passed both marks. ContractError if there is no such mark.
  virtual double milliseconds(size_t from, size_t to) = 0;
};

// Uses the host's clock: for devices whose calls have finished when they return.
std::unique_ptr<StreamTimer> make_host_timer();

}  // namespace mantissa
