#include "comm/staged/staged_queue.h"

#include <thread>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

constexpr size_t kAlignmentBytes = 256;

size_t aligned(size_t bytes) { return round_up(bytes, kAlignmentBytes); }

// What a transport for host memory is given: it moves data that is there, and the queue does the ordering.
class HostStream final : public Stream {
  class Passed final : public Event {
    bool done() const override { return true; }
  };

 public:
  std::unique_ptr<Event> record() override { return std::make_unique<Passed>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

}  // namespace

class StagedQueue::StagedWork final : public Work {
 public:
  StagedWork(StagedQueue& queue, std::shared_ptr<Transfer> transfer) : queue_(queue), transfer_(std::move(transfer)) {}
  ~StagedWork() override { transfer_->abandoned = true; }

  bool test() override {
    if (!transfer_->done) queue_.advance();
    return transfer_->done;
  }
  void wait() override {
    while (!test()) std::this_thread::yield();  // see MpiWork::wait()
  }

 private:
  StagedQueue& queue_;
  std::shared_ptr<Transfer> transfer_;
};

StagedQueue::~StagedQueue() {
  for (const auto& transfer : exchanging_) give_up(*transfer);
  for (const auto& transfer : waiting_) give_up(*transfer);
}

std::unique_ptr<Work> StagedQueue::push(StagedRequest request) {
  if (failure_) std::rethrow_exception(failure_);
  auto transfer = std::make_shared<Transfer>();
  transfer->request = std::move(request);
  auto work = std::make_unique<StagedWork>(*this, transfer);
  copy_out(*transfer);
  waiting_.push_back(std::move(transfer));
  return work;
}

void StagedQueue::copy_out(Transfer& transfer) {
  const StagedRequest& request = transfer.request;
  if (request.receive.device().kind == Device::Kind::kCpu) {
    transfer.send = request.send;
    transfer.receive = request.receive;
    return;
  }
  // A gather goes in place, as the row that it ends up in.
  const bool two_buffers = request.kind == CollectiveKind::kAllToAll;
  const size_t receive_at = two_buffers ? aligned(request.send.size_bytes()) : 0;
  transfer.memory = pool_.take(receive_at + request.receive.size_bytes());
  transfer.receive = Tensor(transfer.memory, request.receive.dtype(), request.receive.shape(), receive_at);
  transfer.send = two_buffers ? Tensor(transfer.memory, request.send.dtype(), request.send.shape())
                              : transfer.receive.slice(transport_.rank() * request.send.numel(), request.send.numel());
  backend_.copy(request.send, transfer.send.view(request.send.shape()), *request.stream);
  transfer.copied_out = request.stream->record();
}

void StagedQueue::start(Transfer& transfer) {
  HostStream stream;
  transfer.copied_out.reset();
  transfer.exchange = transfer.request.kind == CollectiveKind::kAllToAll
                          ? transport_.all_to_all(transfer.send, transfer.receive, stream)
                          : transport_.all_gather(transfer.send, transfer.receive, stream);
}

void StagedQueue::finish(Transfer& transfer) {
  const StagedRequest& request = transfer.request;
  transfer.exchange.reset();
  if (transfer.memory != nullptr) {
    std::unique_ptr<Event> copied_in;
    if (!transfer.abandoned) {
      backend_.copy(transfer.receive, request.receive, *request.stream);
      copied_in = request.stream->record();
    }
    transfer.send = transfer.receive = Tensor();
    pool_.give_back(std::move(transfer.memory), std::move(copied_in));
  }
  transfer.request = {};
  transfer.done = true;
}

void StagedQueue::give_up(Transfer& transfer) {
  transfer.exchange.reset();
  transfer.send = transfer.receive = Tensor();
  if (transfer.memory != nullptr) pool_.give_back(std::move(transfer.memory), std::move(transfer.copied_out));
}

void StagedQueue::advance() {
  if (failure_) std::rethrow_exception(failure_);
  try {
    while (!waiting_.empty()) {
      const std::shared_ptr<Transfer> next = waiting_.front();
      if (next->copied_out != nullptr && !next->copied_out->done()) break;
      start(*next);
      exchanging_.push_back(next);
      waiting_.pop_front();
    }
    for (auto transfer = exchanging_.begin(); transfer != exchanging_.end();) {
      if ((*transfer)->exchange->test()) {
        finish(**transfer);
        transfer = exchanging_.erase(transfer);
      } else {
        ++transfer;
      }
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

void StagedQueue::start_all() {
  while (!waiting_.empty()) {
    advance();
    if (!waiting_.empty()) std::this_thread::yield();
  }
}

}  // namespace mantissa
