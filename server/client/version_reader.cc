#include "server/client/version_reader.h"

#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/digest.h"
#include "base/status.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "server/client/rounds_client.h"
#include "server/client/shard_span.h"

namespace cadre {
namespace {

// A user waits for a shard that does not answer at most this long.
constexpr absl::Duration kSilence = absl::Seconds(30);
// Aggregators keep two versions, so that a version is replaced while it is read only if the read
// takes longer than a round.
constexpr int kMaxAttempts = 5;
constexpr absl::Duration kPause = absl::Milliseconds(200);

// The values of the positions `span`, which are those of the shard.
absl::Status ReadShard(const std::string& run, int shard, Interval span,
                       const v1::LocateReply& located, const ParameterIndex& index,
                       const Credentials& credentials, std::span<float> values) {
  const v1::LocateReply::Shard& location = located.shards(shard);
  if (location.address().empty()) {
    return absl::UnavailableError(absl::StrCat("aggregator ", location.aggregator(), " is away"));
  }
  v1::PullRequest request;
  request.set_run(run);
  request.set_lineage(located.lineage());
  request.set_version(located.version());
  for (const v1::Range& range : index.RangesOf(span.begin, span.end)) {
    *request.add_ranges() = range;
  }
  RoundsClient client([&] { return ShardLocation(location.address(), location.aggregator()); },
                      {.silence = kSilence}, nullptr, {}, credentials);
  Traffic traffic;
  return Annotate(client.Read(request, values, &traffic),
                  absl::StrCat("aggregator ", location.aggregator()));
}

// The id of a run is the part of its lineage before the dot, which no name contains.
std::string RunOf(const std::string& lineage, const std::string& id_or_name) {
  const size_t dot = lineage.find('.');
  return dot == std::string::npos ? id_or_name : lineage.substr(0, dot);
}

absl::Status ReadShards(const Credentials& credentials, ReadVersion& version) {
  const std::string& run = version.run;
  const v1::LocateReply& located = version.located;
  if (located.shards().empty()) {
    return absl::InternalError("the coordinator has named no aggregator of the run");
  }
  const std::span<float> values(version.values);
  std::optional<ExchangeUnits> units;
  if (ExchangesUnits(located.spec().averaging())) units.emplace(version.index);
  const int shards = located.shards_size();
  for (int shard = 0; shard < shards; ++shard) {
    const Interval span =
        units ? units->PartOf(shard, shards) : ShardSpan(version.index.size(), shard, shards);
    CADRE_RETURN_IF_ERROR(ReadShard(run, shard, span, located, version.index, credentials,
                                    values.subspan(span.begin, span.size())));
  }
  if (Digest(version.values, 0) == located.digest()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the values of version ", located.version(), " of ", run,
                                          " do not have the digest ", DigestHex(located.digest()),
                                          " of the version"));
}

}  // namespace

absl::StatusOr<ReadVersion> ReadNewestVersion(
    const std::string& run, const std::function<absl::StatusOr<v1::LocateReply>()>& locate,
    const Credentials& credentials) {
  for (int attempt = 1;; ++attempt) {
    ReadVersion version;
    CADRE_ASSIGN_OR_RETURN(version.located, locate());
    CADRE_ASSIGN_OR_RETURN(version.index,
                           ParameterIndex::FromModel(version.located.spec().model()));
    version.run = RunOf(version.located.lineage(), run);
    version.values.resize(version.index.size());
    const absl::Status read = ReadShards(credentials, version);
    if (read.ok()) return version;
    if (!absl::IsFailedPrecondition(read) || attempt == kMaxAttempts) return read;
    // The coordinator may not have received yet that the version was replaced.
    absl::SleepFor(kPause);
  }
}

}  // namespace cadre
