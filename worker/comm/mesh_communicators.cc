#include "worker/comm/mesh_communicators.h"

#include <utility>

#include "glog/logging.h"

namespace cadre {

MeshCommunicators::MeshCommunicators(Transport& transport, Mesh mesh)
    : transport_(transport), mesh_(std::move(mesh)) {
  CHECK_EQ(mesh_.ranks(), transport_.size());
}

Communicator& MeshCommunicators::Over(const std::vector<std::string>& axes) {
  std::vector<int> members = mesh_.Peers(rank(), axes);
  std::unique_ptr<Communicator>& comm = by_members_[members];
  if (comm == nullptr) comm = std::make_unique<Communicator>(transport_, std::move(members));
  return *comm;
}

Communicator& MeshCommunicators::All() {
  std::vector<std::string> axes;
  for (const Mesh::Axis& axis : mesh_.axes()) axes.push_back(axis.name);
  return Over(axes);
}

}  // namespace cadre
