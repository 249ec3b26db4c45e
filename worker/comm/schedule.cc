#include "worker/comm/schedule.h"

#include <glog/logging.h>

#include "tensor/layout.h"
#include "worker/comm/schedule_parts.h"

namespace cadre {
namespace {

void CheckPlace(int index, size_t members) {
  CHECK(index >= 0 && static_cast<size_t>(index) < members) << index << " of " << members;
}

}  // namespace

std::vector<Piece> EqualPieces(int64_t elements, int pieces) {
  std::vector<Piece> equal;
  equal.reserve(static_cast<size_t>(pieces));
  for (int i = 0; i < pieces; ++i) {
    equal.push_back({PartBegin(elements, i, pieces), PartBegin(elements, i + 1, pieces)});
  }
  return equal;
}

Schedule ReduceScatterSchedule(Algorithm algorithm, int index, std::span<const Piece> pieces) {
  CheckPlace(index, pieces.size());
  if (algorithm == Algorithm::kRing) return RingReduceScatter(index, pieces);
  if (algorithm == Algorithm::kButterfly) return ButterflyReduceScatter(index, pieces);
  CHECK(algorithm == Algorithm::kHalvingDoubling) << AlgorithmName(algorithm);
  return HalvingReduceScatter(index, pieces);
}

Schedule AllGatherSchedule(Algorithm algorithm, int index, std::span<const Piece> pieces) {
  CheckPlace(index, pieces.size());
  if (algorithm == Algorithm::kRing) return RingAllGather(index, pieces);
  CHECK(algorithm == Algorithm::kButterfly || algorithm == Algorithm::kHalvingDoubling)
      << AlgorithmName(algorithm);
  return DoublingAllGather(index, pieces);
}

Schedule AllReduceSchedule(Algorithm algorithm, int index, int members, int64_t elements) {
  CheckPlace(index, static_cast<size_t>(members));
  if (algorithm == Algorithm::kRing) return RingAllReduce(index, EqualPieces(elements, members));
  if (algorithm == Algorithm::kButterfly) return ButterflyAllReduce(index, members, elements);
  CHECK(algorithm == Algorithm::kHalvingDoubling) << AlgorithmName(algorithm);
  return HalvingDoublingAllReduce(index, members, elements);
}

int LastReceive(const Schedule& schedule) {
  for (size_t i = schedule.size(); i > 0; --i) {
    if (schedule[i - 1].kind != ScheduleStep::Kind::kSend) return static_cast<int>(i - 1);
  }
  return ScheduleStep::kNone;
}

ScheduleWork WorkOf(const Schedule& schedule) {
  ScheduleWork work;
  for (const ScheduleStep& step : schedule) {
    if (step.kind == ScheduleStep::Kind::kSend) {
      ++work.messages;
      work.elements += step.piece.size();
    } else if (step.kind == ScheduleStep::Kind::kReceiveSum) {
      work.added += step.piece.size();
    }
  }
  return work;
}

}  // namespace cadre
