#include "comm/mesh_communicators.h"

#include <set>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

MeshCommunicators::MeshCommunicators(Transport& transport, Mesh mesh)
    : transport_(transport), mesh_(std::move(mesh)) {
  CHECK_EQ(mesh_.ranks(), transport_.size());
}

Communicator& MeshCommunicators::Over(const std::vector<std::string>& axes, int channel) {
  return Among(mesh_.Peers(rank(), axes), channel);
}

Communicator& MeshCommunicators::All(int channel) {
  std::vector<std::string> axes;
  for (const Mesh::Axis& axis : mesh_.axes()) axes.push_back(axis.name);
  return Over(axes, channel);
}

Communicator& MeshCommunicators::Among(const std::vector<int>& members, int channel) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<Communicator>& comm = made_[{channel, members}];
  if (comm == nullptr) comm = std::make_unique<Communicator>(transport_, members, channel);
  return *comm;
}

absl::Status MeshCommunicators::Prepare(std::span<const std::vector<std::string>> axes) {
  if (!transport_.has_native()) return absl::OkStatus();
  for (const std::vector<std::string>& set : axes) {
    // The partition of all ranks into communicators along these axes.
    std::set<std::vector<int>> members;
    for (int rank = 0; rank < transport_.size(); ++rank) members.insert(mesh_.Peers(rank, set));
    const std::vector<std::vector<int>> parts(members.begin(), members.end());
    if (std::ssize(parts) == transport_.size()) continue;  // single ranks
    CADRE_RETURN_IF_ERROR(transport_.PrepareMembers(parts));
  }
  return absl::OkStatus();
}

uint64_t MeshCommunicators::bytes_sent() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = sent_otherwise_;
  for (const auto& [key, comm] : made_) bytes += comm->bytes_sent();
  return bytes;
}

double MeshCommunicators::seconds(int channel) const {
  absl::MutexLock lock(&mutex_);
  double seconds = 0;
  for (const auto& [key, comm] : made_) seconds += key.first == channel ? comm->seconds() : 0;
  return seconds;
}

}  // namespace cadre
