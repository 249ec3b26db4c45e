#include "worker/comm/mesh_communicators.h"

#include <utility>

#include "glog/logging.h"

namespace cadre {

MeshCommunicators::MeshCommunicators(Transport& transport, Mesh mesh)
    : transport_(transport), mesh_(std::move(mesh)) {
  CHECK_EQ(mesh_.ranks(), transport_.size());
}

Communicator& MeshCommunicators::Over(const std::vector<std::string>& axes) {
  return Among(mesh_.Peers(rank(), axes));
}

Communicator& MeshCommunicators::Among(const std::vector<int>& members) {
  std::unique_ptr<Communicator>& comm = by_members_[members];
  if (comm == nullptr) comm = std::make_unique<Communicator>(transport_, members);
  return *comm;
}

uint64_t MeshCommunicators::bytes_sent() const {
  uint64_t bytes = 0;
  for (const auto& [members, comm] : by_members_) bytes += comm->bytes_sent();
  return bytes;
}

Communicator& MeshCommunicators::All() {
  std::vector<std::string> axes;
  for (const Mesh::Axis& axis : mesh_.axes()) axes.push_back(axis.name);
  return Over(axes);
}

}  // namespace cadre
