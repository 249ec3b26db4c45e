#include "tensor/collective.h"

namespace cadre {

absl::string_view CollectiveName(Collective collective) {
  switch (collective) {
    case Collective::kNone:
      return "nothing";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kAllToAll:
      return "all-to-all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kAnnounceNext:
      return "order of the background queue";
  }
  return "unknown collective";
}

absl::string_view AlgorithmName(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kNone:
      return "no algorithm";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kButterfly:
      return "butterfly";
    case Algorithm::kHalvingDoubling:
      return "halving-doubling";
    case Algorithm::kSingle:
      return "its only algorithm";
    case Algorithm::kNative:
      return "native";
  }
  return "unknown algorithm";
}

std::optional<Algorithm> AlgorithmFromName(absl::string_view name) {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling, Algorithm::kNative}) {
    if (name == AlgorithmName(algorithm)) return algorithm;
  }
  return std::nullopt;
}

}  // namespace cadre
