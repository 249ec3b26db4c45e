// Hosts are measured in pairs, because links of one host share its network interface: a host in two
// measurements would halve both. All pairs of a round are measured simultaneously, so n hosts take
// n - 1 rounds instead of n (n - 1) / 2 measurements. A barrier separates rounds.
//
// Limit: if pairs of a round share a switch, each measures its share of the switch's capacity. A
// training step that uses all links gets the same share.
#include "worker/probe/link_matrix.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link_probe.h"
#include "member/agreement.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {
namespace {

// Serializes the links that one rank reports: those to partners with higher ranks.
std::string Serialize(const std::vector<std::pair<int, LinkProfile>>& measured) {
  v1::ClusterProfile message;
  for (const auto& [partner, profile] : measured) {
    v1::HostLink& link = *message.add_link();
    link.set_to(absl::StrCat(partner));
    *link.mutable_link() = LinkProfileToProto(profile);
  }
  return message.SerializeAsString();
}

absl::Status Parse(const std::string& bytes, int from, LinkMatrix* matrix) {
  v1::ClusterProfile message;
  if (!message.ParseFromString(bytes)) {
    return absl::InternalError(absl::StrCat("cannot parse the links of rank ", from));
  }
  for (const v1::HostLink& link : message.link()) {
    int to = -1;
    if (!absl::SimpleAtoi(link.to(), &to) || to <= from || to >= std::ssize(*matrix)) {
      return absl::InternalError(
          absl::StrCat("rank ", from, " cannot have a link to '", link.to(), "'"));
    }
    CADRE_ASSIGN_OR_RETURN((*matrix)[from][to], LinkProfileFromProto(link.link()));
    (*matrix)[to][from] = (*matrix)[from][to];
  }
  return absl::OkStatus();
}

// The pair of the round to which the host belongs; nullopt if it has no partner in this round.
std::optional<std::pair<int, int>> PairOf(const std::vector<std::pair<int, int>>& round, int host) {
  for (const std::pair<int, int>& pair : round) {
    if (pair.first == host || pair.second == host) return pair;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::vector<std::pair<int, int>>> RoundRobinRounds(int hosts) {
  // With an odd number of hosts, the last position is a dummy: the host that it is paired with has
  // no partner in that round.
  const int positions = hosts + hosts % 2;
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int turn = 0; turn + 1 < positions; ++turn) {
    // The last position is fixed; the others rotate by one in each round.
    const auto at = [&](int position) {
      return position == positions - 1 ? position : (position + turn) % (positions - 1);
    };
    std::vector<std::pair<int, int>> round;
    for (int position = 0; position < positions / 2; ++position) {
      const std::pair<int, int> pair = std::minmax({at(position), at(positions - 1 - position)});
      if (pair.second < hosts) round.push_back(pair);
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

absl::StatusOr<LinkMatrix> MeasureLinkMatrix(Transport& transport, absl::Time deadline) {
  const int hosts = transport.size();
  Communicator all = WholeGroup(transport);
  std::vector<std::pair<int, LinkProfile>> measured;
  for (const auto& round : RoundRobinRounds(hosts)) {
    if (absl::Now() > deadline) {
      const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
          "the links between ", hosts, " hosts were not measured in the available time"));
      transport.Abort(late);
      return late;
    }
    CADRE_RETURN_IF_ERROR(all.Barrier());
    const auto pair = PairOf(round, transport.rank());
    if (!pair) continue;
    Communicator pair_group(transport, {pair->first, pair->second});
    CADRE_ASSIGN_OR_RETURN(LinkProfile link, MeasureLink(pair_group, /*samples=*/false));
    // Both ranks have bitwise identical results; the lower one reports them.
    if (pair->first == transport.rank()) measured.emplace_back(pair->second, std::move(link));
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         GatherTexts(Serialize(measured), all));
  LinkMatrix matrix(hosts, std::vector<LinkProfile>(hosts));
  for (int host = 0; host < hosts; ++host) {
    CADRE_RETURN_IF_ERROR(Parse(texts[host], host, &matrix));
  }
  return matrix;
}

}  // namespace cadre
