// Registers the transport "nccl": this machine's NCCL, with ranks that MPI connects.
#include "comm/mpi/mpi_communicator.h"
#include "comm/nccl/nccl_communicator.h"

namespace mantissa {
namespace {

std::unique_ptr<Communicator> create() {
  const NcclApi api = load_nccl();
  const NcclOptions options = nccl_options_from_environment();
  return create_nccl_communicator(api, create_mpi_communicator(), options);
}

std::string unusable_reason() {
  try {
    load_nccl();
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string library() { return "NCCL " + nccl_version_text(nccl_version(load_nccl())); }

const bool kRegistered =
    register_communicator("nccl", {.create = create, .unusable_reason = unusable_reason, .library = library});

}  // namespace
}  // namespace mantissa
