#include "tests/comm/fake_nccl_clique.h"

#include <algorithm>
#include <cstring>

#include "core/cuda/emulation/stream_queue.h"

namespace mantissa::testing::fake_nccl {
namespace {

// Moves the rows that a rank receives.
void move_rows(const Operation& operation, int rank) {
  for (const Message& mine : operation.posts[static_cast<size_t>(rank)].messages) {
    for (size_t source = 0; source < operation.posts.size(); ++source) {
      const std::vector<Message>& theirs = operation.posts[source].messages;
      const size_t own = static_cast<size_t>(rank);
      switch (mine.kind) {
        case Message::Kind::kAllGather:
          std::memmove(mine.to + source * mine.bytes, theirs[0].from, mine.bytes);
          break;
        case Message::Kind::kAllToAll:
          std::memmove(mine.to + source * mine.bytes, theirs[0].from + own * mine.bytes, mine.bytes);
          break;
        case Message::Kind::kReceive:
          for (const Message& other : theirs) {
            const bool meant = other.kind == Message::Kind::kSend && other.peer == rank;
            if (meant && static_cast<int>(source) == mine.peer) std::memmove(mine.to, other.from, mine.bytes);
          }
          break;
        case Message::Kind::kSend:
          break;
      }
    }
  }
}

// By rank: how often it reached a captured operation and moved its rows.
struct Meetings {
  std::vector<int> arrived, moved;
};

}  // namespace

Clique::~Clique() {
  open_gate();
  for (const cuda::EventHandle event : events) cuda::destroy_event(event);
  if (gate != nullptr) cuda::destroy_event(gate);
}

void Clique::close_gate() {
  gate = cuda::create_event();
  gate->recorded = 1;
}

void Clique::open_gate() {
  if (gate == nullptr) return;
  const cuda::StreamHandle helper = cuda::create_stream();
  cuda::record(gate, helper);
  cuda::destroy_stream(helper);
}

cuda::EventHandle Clique::record(cuda::StreamHandle stream) {
  events.push_back(cuda::create_event());
  cuda::record(events.back(), stream);
  return events.back();
}

std::optional<bool> is_captured(const Operation& operation) {
  const auto captured = std::count_if(operation.posts.begin(), operation.posts.end(),
                                      [](const Post& post) { return cuda::is_capturing(post.stream); });
  if (captured == 0) return false;
  if (captured == static_cast<ptrdiff_t>(operation.posts.size())) return true;
  return std::nullopt;
}

void launch(Clique& clique, const std::shared_ptr<Operation>& operation) {
  std::vector<cuda::EventHandle> starts, ends;
  for (const Post& post : operation->posts) starts.push_back(clique.record(post.stream));
  for (size_t rank = 0; rank < operation->posts.size(); ++rank) {
    const cuda::StreamHandle stream = operation->posts[rank].stream;
    for (const cuda::EventHandle start : starts) cuda::wait(stream, start);
    ++clique.moving;
    cuda::emulation::enqueue(stream, [operation, rank, &clique] {
      move_rows(*operation, static_cast<int>(rank));
      --clique.moving;
    });
    if (clique.gate != nullptr) cuda::wait(stream, clique.gate);
    ends.push_back(clique.record(stream));
  }
  for (const Post& post : operation->posts) {
    for (const cuda::EventHandle end : ends) cuda::wait(post.stream, end);
  }
}

void capture(const std::shared_ptr<Clique>& clique, const Operation& operation) {
  const size_t ranks = operation.posts.size();
  const auto meetings = std::make_shared<Meetings>(Meetings{std::vector<int>(ranks), std::vector<int>(ranks)});
  const auto posts = std::make_shared<Operation>(operation);
  for (Post& post : posts->posts) post.graph_reference.reset();
  for (size_t rank = 0; rank < ranks; ++rank) {
    const cuda::StreamHandle stream = operation.posts[rank].stream;
    const auto have_all = [clique, rank](const std::vector<int>& counts) {
      return clique->aborted || *std::min_element(counts.begin(), counts.end()) >= counts[rank];
    };
    cuda::emulation::enqueue(
        stream, [meetings, rank, reference = operation.posts[rank].graph_reference] { ++meetings->arrived[rank]; });
    cuda::emulation::enqueue(stream, {.run =
                                          [=] {
                                            if (!clique->aborted) move_rows(*posts, static_cast<int>(rank));
                                            ++meetings->moved[rank];
                                          },
                                      .is_ready = [=] { return have_all(meetings->arrived); }});
    cuda::emulation::enqueue(stream, {.run = [] {},
                                      .is_ready =
                                          [=] {
                                            const bool ends = clique->gate == nullptr || clique->aborted;
                                            return ends && have_all(meetings->moved);
                                          }});
  }
}

}  // namespace mantissa::testing::fake_nccl
