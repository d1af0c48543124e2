#include "core/cuda/graph.h"

namespace mantissa::cuda {
namespace {

class Graph final : public CapturedWork {
 public:
  Graph(CudaStream& stream, GraphHandle handle) : stream_(stream), handle_(handle) {}
  ~Graph() override { destroy_graph(handle_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() override { launch_graph(handle_, stream_.handle()); }

 private:
  CudaStream& stream_;
  GraphHandle handle_;
};

// A capture that was begun must be ended, or the stream is of no more use.
void abandon_capture(CudaStream& stream) noexcept {
  try {
    destroy_graph(end_capture(stream.handle()));
  } catch (const CudaError&) {  // the capture was spoilt by what `body` threw for
  }
}

}  // namespace

std::unique_ptr<CapturedWork> capture_graph(CudaStream& stream, const std::function<void()>& body) {
  begin_capture(stream.handle());
  try {
    body();
  } catch (...) {
    abandon_capture(stream);
    throw;
  }
  return std::make_unique<Graph>(stream, end_capture(stream.handle()));
}

}  // namespace mantissa::cuda
