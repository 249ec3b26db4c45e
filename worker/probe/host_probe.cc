// Every host contributes the profile that it has measured alone (machine_probe.cc) and takes part
// in the measurement of links. The profiles are exchanged as serialized messages, so all hosts
// compute the same result from the same bytes, and any of them can write it.
#include "worker/probe/host_probe.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/transport/connect_group.h"
#include "comm/transport/tcp_listener.h"
#include "member/agreement.h"
#include "plan/cost/collective_cost.h"
#include "worker/probe/machine_probe.h"

namespace cadre {
namespace {

// Time after which a silent transport fails. Hosts without a partner in a round send nothing.
constexpr absl::Duration kPeerTimeout = absl::Minutes(2);

absl::StatusOr<std::vector<v1::ClusterProfile>> ExchangeProfiles(const v1::ClusterProfile& own,
                                                                 Communicator& all) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         GatherTexts(own.SerializeAsString(), all));
  std::vector<v1::ClusterProfile> hosts(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!hosts[i].ParseFromString(texts[i]) || hosts[i].host_size() != 1 ||
        hosts[i].device_size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the profile of host ", i, " does not contain one host and one device"));
    }
  }
  return hosts;
}

}  // namespace

v1::ClusterProfile JoinProfiles(const std::vector<v1::ClusterProfile>& hosts,
                                const LinkMatrix& links) {
  v1::ClusterProfile joined;
  std::map<std::string, int> names;
  std::map<std::string, std::vector<v1::DeviceProfile>> devices;
  std::vector<std::string> device_order;
  for (const v1::ClusterProfile& one : hosts) ++names[one.host(0).name()];
  for (size_t i = 0; i < hosts.size(); ++i) {
    v1::HostProfile& host = *joined.add_host();
    host = hosts[i].host(0);
    if (names.at(host.name()) > 1) host.set_name(absl::StrCat(host.name(), "-", i));
    std::vector<v1::DeviceProfile>& alike = devices[hosts[i].device(0).name()];
    if (alike.empty()) device_order.push_back(hosts[i].device(0).name());
    alike.push_back(hosts[i].device(0));
  }
  for (const std::string& name : device_order) {
    *joined.add_device() = MergeDevices(devices.at(name));
  }
  for (size_t a = 0; a < hosts.size(); ++a) {
    for (size_t b = a + 1; b < hosts.size(); ++b) {
      v1::HostLink& link = *joined.add_link();
      link.set_from(joined.host(a).name());
      link.set_to(joined.host(b).name());
      *link.mutable_link() = LinkProfileToProto(links[a][b]);
      link.mutable_link()->set_kind(v1::LinkProfile::TCP);
    }
  }
  return joined;
}

absl::StatusOr<v1::ClusterProfile> ProbeHosts(const v1::ClusterProfile& own, Transport& transport,
                                              absl::Time deadline) {
  Communicator all = WholeGroup(transport);
  CADRE_ASSIGN_OR_RETURN(const std::vector<v1::ClusterProfile> hosts, ExchangeProfiles(own, all));
  CADRE_ASSIGN_OR_RETURN(const LinkMatrix links, MeasureLinkMatrix(transport, deadline));
  return JoinProfiles(hosts, links);
}

absl::StatusOr<v1::ClusterProfile> ProbeHosts(const v1::ClusterProfile& own,
                                              const std::vector<std::string>& peers, int rank,
                                              absl::Time meet_by, absl::Time deadline) {
  CADRE_ASSIGN_OR_RETURN(const auto listener, TcpListener::Listen({.address = peers[rank]}));
  const GroupIdentity group{.protocol = kProtocol, .run = "probe", .generation = 1};
  // Shared memory is disabled, because the probe measures the network.
  CADRE_ASSIGN_OR_RETURN(const auto transport,
                         ConnectGroup(*listener, group, rank, peers,
                                      {.deadline = std::min(meet_by, deadline),
                                       .timeout = kPeerTimeout,
                                       .shared_memory = false}));
  return ProbeHosts(own, *transport, deadline);
}

}  // namespace cadre
