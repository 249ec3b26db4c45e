// Averaging without a root rank: every rank exchanges exactly what it owns.
//
// Each element of the model is owned by one rank of a group and by one aggregator shard. A rank
// intersects its intervals with those of each shard and exchanges the overlaps. Neither side needs
// the other's partition, so groups with different meshes average with one another through any
// number of shards, and a rank sends n / p elements in each direction for a model of n elements and
// p ranks. No rank holds the whole model for this.
//
// Each shard has its own thread. The disks and the network bound the speed; without overlap no step
// is computed meanwhile. The values of a call are copied into one buffer per shard and direction,
// because owned intervals are scattered over buckets while the client sends contiguous chunks, and
// because training changes the owned values meanwhile.
//
// Failures. RoundsClient retries while it makes progress; Stage and Pull are idempotent. The first
// shard for which a call fails ends the calls to the others, which would be of no use. If any
// shard refuses the contribution because the round is closed (server/client/refusal.h), that error
// is returned even if other shards failed otherwise: the coordinator's decision then determines how
// the group continues.
//
// Restoring shards. The threads that stage values again copy them under mutex_, while `held` has
// them, so that nothing changes them, and stage the copy without the mutex: the rank may be pulling
// from the same shard, which refuses pulls until it is restored.
#include "worker/train/shard_exchange.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/secret_key.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/coding.h"
#include "server/client/frame.h"
#include "server/client/refusal.h"
#include "server/client/shard_span.h"

namespace cadre {
namespace {

int64_t ElementsOf(const std::vector<Owned>& parts) {
  int64_t elements = 0;
  for (const Owned& part : parts) elements += part.positions.size();
  return elements;
}

void CopyFrom(const std::vector<Owned>& parts, std::vector<float>* values) {
  values->clear();
  values->reserve(ElementsOf(parts));
  for (const Owned& part : parts) {
    values->insert(values->end(), part.values.begin(), part.values.end());
  }
}

}  // namespace

ShardExchange::ShardExchange(const v1::Assignment& assignment, const ParameterIndex& index,
                             const ExchangeUnits* units, std::span<const Owned> owned,
                             GroupControl& control, Cancellation& cancellation,
                             TrainerProgress& progress, absl::Duration silence,
                             Credentials credentials)
    : rank_slot_(assignment.place()),
      lineage_(assignment.lineage()),
      index_(index),
      units_(units),
      up_(CodingOf(assignment.spec().averaging().up())),
      down_(CodingOf(assignment.spec().averaging().down())),
      overlap_(assignment.spec().averaging().overlap()),
      control_(control) {
  const uint32_t shards = assignment.shards_size();
  // The group could not have connected with a key of another size.
  const SecretKey key = ParseSecretKey(assignment.key()).value_or(SecretKey{});
  for (uint32_t id = 0; id < shards; ++id) {
    Shard shard{.id = id,
                .positions = units != nullptr ? units->PartOf(id, shards)
                                              : ShardSpan(index.size(), id, shards)};
    shard.parts = PartsIn(shard.positions, owned);
    shard.client = std::make_unique<RoundsClient>(
        [&control, id] { return control.ShardAddress(id); },
        // Different seeds, so that ranks that failed together do not retry at the same times.
        TransferOptions{.seed = (uint64_t{rank_slot_.group()} << 32) + rank_slot_.rank() * 64 + id,
                        .silence = silence},
        [&progress] { progress.Advance(); }, key, credentials, assignment.shards(id).name());
    shards_.push_back(std::move(shard));
  }
  on_cancel_ = cancellation.OnCancel([this](const absl::Status&) {
    for (Shard& shard : shards_) shard.client->Cancel();
  });
  control_.HandleRestage([this](const v1::Restage& restage) { OnRestage(restage); });
}

ShardExchange::~ShardExchange() {
  control_.HandleRestage(nullptr);
  for (Shard& shard : shards_) shard.client->Cancel();
}

template <typename Message>
void ShardExchange::FillRanges(const std::vector<Owned>& parts, Message& message) const {
  for (const Owned& part : parts) {
    for (const v1::Range& range : index_.RangesOf(part.positions.begin, part.positions.end)) {
      *message.add_ranges() = range;
    }
  }
}

absl::Status ShardExchange::ForEachShard(
    const std::function<absl::Status(Shard&, std::stop_token)>& work, Traffic* traffic) {
  std::vector<absl::Status> results(shards_.size());
  std::stop_source failed;
  std::atomic<size_t> first = shards_.size();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].traffic = Traffic();
    threads.emplace_back([&, i] {
      results[i] = work(shards_[i], failed.get_token());
      size_t none = shards_.size();
      if (!results[i].ok() && first.compare_exchange_strong(none, i)) failed.request_stop();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Shard& shard : shards_) *traffic += shard.traffic;
  for (const absl::Status& result : results) {
    if (RefusalOf(result) == v1::REFUSAL_CLOSED_ROUND) return result;
  }
  if (first == shards_.size()) return absl::OkStatus();
  const absl::Status& error = results[first];
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), " (shard ", shards_[first].id, ")"));
}

v1::ContributionHeader ShardExchange::HeaderOf(const Shard& shard, uint32_t round,
                                               uint64_t samples) const {
  v1::ContributionHeader header;
  header.set_run(rank_slot_.run());
  header.set_lineage(lineage_);
  header.set_group(rank_slot_.group());
  header.set_generation(rank_slot_.generation());
  header.set_rank(rank_slot_.rank());
  header.set_round(round);
  header.set_base_version(round - 1);
  header.set_samples(samples);
  FillRanges(shard.parts, header);
  return header;
}

void ShardExchange::BeginStage(uint32_t round, uint64_t samples) {
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&mutex_);
    shard.held.BeginStage();
    CopyFrom(shard.parts, &shard.staged);
    if (overlap_.steps() > 0) shard.ahead = shard.staged;
  }
  Begin([this, round, samples](Shard& shard, std::stop_token stop) -> absl::Status {
    if (up_) CADRE_RETURN_IF_ERROR(EncodeContribution(shard));
    v1::ContributionHeader header = HeaderOf(shard, round, samples);
    if (up_) header.set_codec(up_->codec());
    CADRE_RETURN_IF_ERROR(shard.client->Stage(header, shard.staged, &shard.traffic, stop));
    absl::MutexLock lock(&mutex_);
    shard.held.EndStage(round);
    shard.contribution = std::move(header);
    return absl::OkStatus();
  });
}

void ShardExchange::BeginPull(uint32_t version) {
  Begin([this, version](Shard& shard, std::stop_token stop) -> absl::Status {
    {
      absl::MutexLock lock(&mutex_);
      shard.held.BeginPull();
    }
    v1::PullRequest request;
    request.set_run(rank_slot_.run());
    request.set_lineage(lineage_);
    request.set_version(version);
    request.set_group(rank_slot_.group());
    request.set_generation(rank_slot_.generation());
    FillRanges(shard.parts, request);
    CADRE_RETURN_IF_ERROR(PullInto(shard, request, stop));
    absl::MutexLock lock(&mutex_);
    shard.held.EndPull(version);
    shard.version_number = version;
    return absl::OkStatus();
  });
}

void ShardExchange::Begin(std::function<absl::Status(Shard&, std::stop_token)> work) {
  CHECK(!begun());
  running_ = std::async(std::launch::async, [this, work = std::move(work)] {
    return ForEachShard(
        [&work](Shard& shard, std::stop_token stop) {
          return shard.parts.empty() ? absl::OkStatus() : work(shard, std::move(stop));
        },
        &traffic_);
  });
}

bool ShardExchange::finished() const {
  return running_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

absl::Status ShardExchange::Finish(Traffic* traffic) {
  absl::Status status = running_.get();
  *traffic += std::exchange(traffic_, Traffic());
  return status;
}

std::span<const ExchangeUnit> ShardExchange::UnitsOf(const Shard& shard) const {
  return units_->In({shard.parts.front().positions.begin, shard.parts.back().positions.end});
}

absl::Status ShardExchange::EncodeContribution(Shard& shard) const {
  CHECK_EQ(shard.version.size(), shard.staged.size());
  shard.change.swap(shard.staged);
  shard.carried.resize(shard.change.size());
  const std::span<const ExchangeUnit> units = UnitsOf(shard);
  const int64_t first = units.front().positions.begin;
  const float feedback = up_->error_feedback();
  for (const ExchangeUnit& unit : units) {
    if (unit.kind == ExchangeUnit::Kind::kStatistic) continue;
    for (int64_t i = unit.positions.begin - first; i < unit.positions.end - first; ++i) {
      shard.change[i] = (shard.change[i] - shard.version[i]) + feedback * shard.carried[i];
    }
  }
  std::string frame;
  const Codec codec = CodecOf(*up_);
  CADRE_RETURN_IF_ERROR(EncodeFrame(units, codec, shard.change, &frame));
  shard.staged.resize(frame.size() / sizeof(float));
  std::memcpy(shard.staged.data(), frame.data(), frame.size());
  CADRE_RETURN_IF_ERROR(DecodeFrame(units, codec, frame, &shard.left_out));
  for (const ExchangeUnit& unit : units) {
    const bool statistic = unit.kind == ExchangeUnit::Kind::kStatistic;
    for (int64_t i = unit.positions.begin - first; i < unit.positions.end - first; ++i) {
      shard.left_out[i] = statistic ? 0 : shard.change[i] - shard.left_out[i];
    }
  }
  return absl::OkStatus();
}

absl::Status ShardExchange::PullInto(Shard& shard, const v1::PullRequest& request,
                                     std::stop_token stop) const {
  const bool has_before = shard.version_number + 1 == request.version() && !shard.version.empty();
  if (down_ && has_before) {
    const absl::Status pulled = PullFrameInto(shard, request, stop);
    // Otherwise there is no such frame.
    if (!absl::IsFailedPrecondition(pulled)) return pulled;
  }
  shard.version.resize(ElementsOf(shard.parts));
  return shard.client->Pull(request, shard.version, &shard.traffic, std::move(stop));
}

absl::Status ShardExchange::PullFrameInto(Shard& shard, const v1::PullRequest& request,
                                          std::stop_token stop) const {
  const std::span<const ExchangeUnit> units = UnitsOf(shard);
  const Codec codec = CodecOf(*down_);
  std::vector<float> elements;
  CADRE_RETURN_IF_ERROR(shard.client->PullFrame(request, MaxFrameWords(units, codec), &elements,
                                                &shard.traffic, std::move(stop)));
  const std::string frame(reinterpret_cast<const char*>(elements.data()),
                          elements.size() * sizeof(float));
  std::vector<float> change;
  if (const absl::Status decoded = DecodeFrame(units, codec, frame, &change); !decoded.ok()) {
    return absl::DataLossError(decoded.message());
  }
  const int64_t first = units.front().positions.begin;
  for (const ExchangeUnit& unit : units) {
    const bool statistic = unit.kind == ExchangeUnit::Kind::kStatistic;
    for (int64_t i = unit.positions.begin - first; i < unit.positions.end - first; ++i) {
      shard.version[i] = statistic ? change[i] : shard.version[i] + change[i];
    }
  }
  return absl::OkStatus();
}

void ShardExchange::AdoptInitial() {
  for (Shard& shard : shards_) CopyFrom(shard.parts, &shard.version);
}

void ShardExchange::Adopt(bool included) {
  absl::MutexLock lock(&mutex_);
  for (Shard& shard : shards_) {
    shard.held.Adopt();
    // Without a contribution since the last version, there is no change.
    if (!shard.change.empty()) shard.carried.swap(included ? shard.left_out : shard.change);
    shard.change.clear();
    const bool contributed = !shard.ahead.empty();
    size_t i = 0;
    for (const Owned& part : shard.parts) {
      for (float& value : part.values) {
        if (contributed) shard.ahead[i] = overlap_.has_blend() ? value : value - shard.ahead[i];
        value = shard.version[i++];
      }
    }
  }
}

void ShardExchange::Merge() {
  for (Shard& shard : shards_) {
    const float* ahead = shard.ahead.data();
    for (const Owned& part : shard.parts) {
      float* value = part.values.data();
      for (const v1::Range& range : index_.RangesOf(part.positions.begin, part.positions.end)) {
        const int64_t size = range.end() - range.begin();
        const bool statistic = IsStatistic(index_[range.tensor()].role);
        for (int64_t i = 0; i < size && !statistic; ++i) {
          value[i] += overlap_.has_blend() ? overlap_.blend() * (ahead[i] - value[i]) : ahead[i];
        }
        value += size;
        ahead += size;
      }
    }
    shard.ahead.clear();
  }
}

void ShardExchange::OnRestage(const v1::Restage& restage) {
  absl::MutexLock lock(&restages_mutex_);
  std::erase_if(restages_, [](const std::future<void>& thread) {
    return thread.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  const std::tuple request(restage.shard(), restage.round(), restage.seed());
  if (!unanswered_.insert(request).second) return;  // repeated
  restages_.push_back(std::async(std::launch::async, [this, restage, request] {
    const absl::Status status = StageAgain(restage);
    LOG(INFO) << "staging " << (restage.seed() ? "version " : "round ") << restage.round()
              << " again at shard " << restage.shard() << ": " << status;
    v1::Restaged restaged;
    *restaged.mutable_place() = rank_slot_;
    restaged.set_shard(restage.shard());
    restaged.set_round(restage.round());
    restaged.set_seed(restage.seed());
    if (!status.ok()) restaged.set_error(status.ToString());
    // The same request may arrive again as soon as the answer is sent.
    {
      absl::MutexLock running(&restages_mutex_);
      unanswered_.erase(request);
    }
    control_.Send(restaged);
  }));
}

absl::Status ShardExchange::StageAgain(const v1::Restage& restage) {
  if (restage.shard() >= shards_.size())
    return absl::InvalidArgumentError("there is no such shard");
  const uint32_t round = restage.round();
  Shard& shard = shards_[restage.shard()];
  if (shard.parts.empty()) return absl::OkStatus();
  v1::ContributionHeader header;
  std::vector<float> values;
  {
    absl::MutexLock lock(&mutex_);
    const bool holds =
        restage.seed() ? shard.held.HasVersion(round) : shard.held.HasContribution(round);
    if (!holds) return absl::NotFoundError("the rank does not hold the values");
    values = restage.seed() ? shard.version : shard.staged;
    if (!restage.seed()) header = shard.contribution;
  }
  if (restage.seed()) {
    header = HeaderOf(shard, round, /*samples=*/1);
    header.set_seed(true);
  }
  Traffic traffic;
  return shard.client->Stage(header, values, &traffic);
}

}  // namespace cadre
