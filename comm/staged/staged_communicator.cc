#include "comm/staged/staged_communicator.h"

#include <deque>
#include <list>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

// A collective on its way through host memory.
struct Transfer {
  Collective kind = Collective::kAllGather;
  Tensor send, receive;
  Stream* stream = nullptr;
  std::shared_ptr<Storage> memory;  // null for tensors on the host
  Tensor host_send, host_receive;   // the transport's operands
  std::unique_ptr<Event> copied_out;
  std::unique_ptr<Work> exchange;
  bool done = false;
  bool abandoned = false;  // tensors and stream may be gone
};

// All ranks must start the transport's collectives in the same order, but a copy leaves the device at different moments
// on each rank. So collectives wait in line: one starts when its copy and all before it have left.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& transport, Backend& backend)
      : Communicator(transport.place()), transport_(transport), backend_(backend), pool_(backend) {}
  StagedCommunicator(std::unique_ptr<Communicator> transport, Backend& backend)
      : Communicator(transport->place()),
        owned_(std::move(transport)),
        transport_(*owned_),
        backend_(backend),
        pool_(backend) {}
  // Abandons unfinished collectives.
  ~StagedCommunicator() override {
    for (const auto& transfer : exchanging_) abandon(*transfer);
    for (const auto& transfer : waiting_) abandon(*transfer);
  }

  std::string name() const override { return transport_.name() + " through host memory"; }

  std::unique_ptr<Work> all_to_all(const Tensor& send, const Tensor& recv, Stream& stream) override {
    check_all_to_all(send, recv, size(), device_of(recv));
    return start(Collective::kAllToAll, send, recv, stream);
  }
  std::unique_ptr<Work> all_gather(const Tensor& send, const Tensor& recv, Stream& stream) override {
    check_all_gather(send, recv, size(), device_of(recv));
    return start(Collective::kAllGather, send, recv, stream);
  }
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) override {
    start_all();
    return transport_.all_gather_bytes(mine);
  }
  void barrier() override {
    start_all();
    transport_.barrier();
  }
  std::unique_ptr<Communicator> split(int color, int members) override {
    start_all();
    return std::make_unique<StagedCommunicator>(transport_.split(color, members), backend_);
  }
  void abort(int exit_code) override { transport_.abort(exit_code); }
  bool carries_device_memory() const override { return true; }

 private:
  // A Work that goes early abandons its tensors, but the collective takes its turn: other ranks count on it.
  class StagedWork final : public Work {
   public:
    StagedWork(StagedCommunicator& communicator, std::shared_ptr<Transfer> transfer)
        : communicator_(communicator), transfer_(std::move(transfer)) {}
    ~StagedWork() override { transfer_->abandoned = true; }

    bool test() override {
      if (!transfer_->done) communicator_.advance();
      return transfer_->done;
    }
    void wait() override {
      if (!transfer_->done) communicator_.wait_for(*transfer_);
    }

   private:
    StagedCommunicator& communicator_;
    std::shared_ptr<Transfer> transfer_;
  };

  // The device on which the operands of this collective must lie.
  Device device_of(const Tensor& receive) const {
    const bool on_host = !receive.defined() || receive.device().kind == Device::Kind::kCpu;
    return on_host ? Device{} : backend_.device();
  }

  std::unique_ptr<Work> start(Collective kind, const Tensor& send, const Tensor& receive, Stream& stream) {
    if (failure_) std::rethrow_exception(failure_);
    const auto transfer = std::make_shared<Transfer>();
    transfer->kind = kind;
    transfer->send = send;
    transfer->receive = receive;
    transfer->stream = &stream;
    auto work = std::make_unique<StagedWork>(*this, transfer);
    copy_out(*transfer);
    waiting_.push_back(transfer);
    advance();  // host tensors start at once unless they have to wait for their turn
    return work;
  }

  void copy_out(Transfer& transfer) {
    const Tensor &send = transfer.send, &receive = transfer.receive;
    if (receive.device().kind == Device::Kind::kCpu) {
      transfer.host_send = send;
      transfer.host_receive = receive;
      return;
    }
    constexpr size_t kAlignmentBytes = 256;
    const bool two_buffers = transfer.kind == Collective::kAllToAll;  // a gather goes in place
    const size_t receive_at = two_buffers ? round_up(send.size_bytes(), kAlignmentBytes) : 0;
    transfer.memory = pool_.take(receive_at + receive.size_bytes());
    transfer.host_receive = Tensor(transfer.memory, receive.dtype(), receive.shape(), receive_at);
    transfer.host_send = two_buffers ? Tensor(transfer.memory, send.dtype(), send.shape())
                                     : transfer.host_receive.slice(rank() * send.numel(), send.numel());
    backend_.copy(send, transfer.host_send.view(send.shape()), *transfer.stream);
    transfer.copied_out = transfer.stream->record();
  }

  void start_exchange(Transfer& transfer) {
    HostStream stream;
    transfer.copied_out.reset();
    transfer.exchange = transfer.kind == Collective::kAllToAll
                            ? transport_.all_to_all(transfer.host_send, transfer.host_receive, stream)
                            : transport_.all_gather(transfer.host_send, transfer.host_receive, stream);
  }

  void finish(Transfer& transfer) {
    if (transfer.memory != nullptr && !transfer.abandoned) {
      backend_.copy(transfer.host_receive, transfer.receive, *transfer.stream);
      release(transfer, transfer.stream->record());
    } else {
      release(transfer, nullptr);
    }
    transfer.send = transfer.receive = Tensor();
    transfer.done = true;
  }

  void abandon(Transfer& transfer) { release(transfer, std::move(transfer.copied_out)); }

  void release(Transfer& transfer, std::unique_ptr<Event> last_copy) {
    transfer.exchange.reset();
    transfer.host_send = transfer.host_receive = Tensor();
    if (transfer.memory != nullptr) pool_.give_back(std::move(transfer.memory), std::move(last_copy));
  }

  // Continues all collectives without blocking. Once one has failed, throws its error forever.
  void advance() {
    if (failure_) std::rethrow_exception(failure_);
    try {
      while (!waiting_.empty()) {
        const std::shared_ptr<Transfer> next = waiting_.front();
        if (next->copied_out != nullptr && !next->copied_out->done()) break;
        start_exchange(*next);
        exchanging_.push_back(next);
        waiting_.pop_front();
      }
      exchanging_.remove_if([this](const std::shared_ptr<Transfer>& transfer) {
        if (!transfer->exchange->test()) return false;
        finish(*transfer);
        return true;
      });
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  void wait_for(const Transfer& transfer) {
    while (advance(), !transfer.done) {
      if (!waiting_.empty()) {  // it starts when its copy has left
        std::this_thread::yield();
        continue;
      }
      try {
        transfer.exchange->wait();
      } catch (...) {
        failure_ = std::current_exception();
        throw;
      }
    }
  }

  // Blocks until all collectives have started: the transport's next call comes after them.
  void start_all() {
    while (!waiting_.empty()) {
      advance();
      if (!waiting_.empty()) std::this_thread::yield();
    }
  }

  const std::unique_ptr<Communicator> owned_;  // the transport of a group
  Communicator& transport_;
  Backend& backend_;
  StagingPool pool_;
  std::deque<std::shared_ptr<Transfer>> waiting_;
  std::list<std::shared_ptr<Transfer>> exchanging_;
  std::exception_ptr failure_;
};

}  // namespace

std::unique_ptr<Communicator> create_staged_communicator(Communicator& transport, Backend& backend) {
  return std::make_unique<StagedCommunicator>(transport, backend);
}

bool StagingPool::passed(Block& block) {
  if (block.last_copy != nullptr && block.last_copy->done()) block.last_copy.reset();
  return block.last_copy == nullptr;
}

StagingPool::~StagingPool() {
  for (Block& block : idle_) {
    try {
      while (!passed(block)) std::this_thread::yield();
    } catch (...) {
      // The device has failed: it copies nothing any more, and reports the failure to its next user.
    }
  }
}

std::shared_ptr<Storage> StagingPool::take(size_t bytes) {
  auto best = idle_.end();  // the smallest block that suffices, else the largest
  for (auto block = idle_.begin(); block != idle_.end(); ++block) {
    if (!passed(*block) || block->memory.use_count() > 1) continue;
    best = block;
    if (block->memory->bytes() >= bytes) break;
  }
  if (best != idle_.end()) {
    std::shared_ptr<Storage> memory = std::move(best->memory);
    idle_.erase(best);
    if (memory->bytes() >= bytes) return memory;
    // A larger block replaces a block that is too small, so there are never more blocks than collectives at once.
  }
  constexpr size_t kGranuleBytes = size_t{64} << 10;  // collectives that differ little in size share blocks
  return backend_.allocate_staging(round_up(std::max<size_t>(1, bytes), kGranuleBytes), "host copies of collectives");
}

void StagingPool::give_back(std::shared_ptr<Storage> memory, std::unique_ptr<Event> last_copy) {
  const auto larger = std::find_if(idle_.begin(), idle_.end(),
                                   [&](const Block& block) { return block.memory->bytes() > memory->bytes(); });
  idle_.insert(larger, {std::move(memory), std::move(last_copy)});
}

}  // namespace mantissa
