#include "tools/train/job.h"

#include <chrono>
#include <memory>
#include <thread>

#include "core/base/log.h"
#include "tools/train/launch.h"

namespace mantissa {
namespace {

// An error that has been told: the exit code is left.
struct Reported {
  int code;
};

// Tells an error; several ranks do not return from here. Gives the exit code.
int report(const std::exception& exception, Communicator* communicator) {
  const auto* error = dynamic_cast<const Error*>(&exception);
  const int code = static_cast<int>(error ? error->code() : ExitCode::kInternal);
  // An error that all ranks meet is told once: the others give rank 0 the time to end the job.
  if (launcher_rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  log_error("{}", exception.what());
  if (communicator != nullptr && communicator->size() > 1) communicator->abort(code);
  return code;
}

}  // namespace

void leave_job(const std::exception& error, Communicator& communicator) {
  throw Reported{report(error, &communicator)};
}

int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body) {
  std::unique_ptr<Communicator> communicator;
  try {
    const Config config = configure();
    require_known_names(config);
    communicator = start_communicator(config.comm.backend, config.device);
    start_logging(communicator->rank(), communicator->size());
    body(config, *communicator);
    return static_cast<int>(ExitCode::kOk);
  } catch (const Reported& reported) {
    return reported.code;
  } catch (const std::exception& exception) {
    return report(exception, communicator.get());
  }
}

}  // namespace mantissa
