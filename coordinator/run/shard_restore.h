// The restoring of one shard that has lost its values: from where they can come, and what has been
// tried.
//
// Every source is used in the same way: the shard is opened as hollow at a version, an Apply makes
// the next one, and the ranks of the groups that are missing there stage their values again. In the
// order in which they are tried, where v is the newest version:
//
//   a copy                   another aggregator holds the shard's part of v, or of v + 1 if the
//                            shard has made it, with its states (shard_copies.h)
//   contributions to v + 1   if that round is closed
//   a seed                   a group that has adopted v stages its values of v
//   contributions to v       if none of its participants has adopted v
//   the open round           the groups have continued; version v is left out at this shard.
//                            No group is formed while a shard is lost, so there must be as many as
//                            a round needs.
//
// An outer update requires the values of the version before, so in runs with an outer optimizer a
// seed of v comes before the contributions, also while the next round is closed; the groups keep v
// for it. The states of the outer optimizer begin again with zeros.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cadre {

class ShardRestore {
 public:
  // What the run knows about its groups.
  struct Group {
    uint32_t group = 0;
    uint32_t generation = 0;
    // Whether it is known to have adopted the newest version, and to have contributed to the next.
    bool adopted = false;
    bool contributed = false;
  };
  struct View {
    // The newest version.
    uint32_t version = 0;
    // Whether the next version is being applied.
    bool closing = false;
    // Whether the newest version is the last one, so that no further round closes.
    bool at_end = false;
    // Whether all participants of that round or, if there is none, of the newest commit train in
    // the same generations as when they contributed.
    bool complete = false;
    // Whether rounds have an outer update.
    bool outer = false;
    // The version of which another aggregator holds a copy.
    std::optional<uint32_t> copy = std::nullopt;
    // Number of groups without which no round closes.
    uint32_t min_groups = 1;
    // The groups that train.
    std::vector<Group> groups;
  };

  enum class Source { kCopy, kContributions, kSeed, kOpenRound };
  struct Attempt {
    Source source = Source::kContributions;
    // The version at which the shard is hollow; the next one is made.
    uint32_t hollow = 0;
    // kSeed: the group.
    uint32_t group = 0;
    uint32_t generation = 0;
    uint32_t round() const { return hollow + 1; }
    bool operator==(const Attempt&) const = default;
  };

  // `reason`: how the shard was lost. `accepts`: the version after which it accepts contributions
  // already. `has_values`: it has that version, and has lost only contributions.
  explicit ShardRestore(std::string reason, std::optional<uint32_t> accepts = std::nullopt,
                        bool has_values = false)
      : has_values_(has_values), reason_(std::move(reason)), hollow_(accepts) {}

  // How the shard was lost, and why attempts have failed.
  const std::string& reason() const { return reason_; }

  // Chooses the attempt, which is kept as long as it is possible and has not failed. Returns
  // whether it has changed; unless ready(), the caller then opens the shard at attempt()->hollow.
  bool Choose(const View& view);
  // Empty: nothing is left to try.
  const std::optional<Attempt>& attempt() const { return attempt_; }
  // The attempt has failed. The shard may hold a wrong version now, so it is made hollow again.
  // Requires: attempt().
  void Fail(const std::string& reason);

  // The shard has answered that it is hollow at this version. One without a version reports 0 as
  // well, so 0 is the version only if the attempt, whose order it may answer, needs it.
  void SetHollow(uint32_t version) {
    if (version > 0 || (attempt_.has_value() && attempt_->hollow == 0)) hollow_ = version;
  }
  // Whether the shard accepts the contributions that the attempt needs.
  bool ready() const { return attempt_.has_value() && hollow_ == attempt_->hollow; }

  // Ranks that have been asked for their values and have not answered, as (group, rank).
  std::set<std::pair<uint32_t, uint32_t>> asked;

 private:
  std::vector<Attempt> Options(const View& view) const;
  // Those that use values of groups.
  std::vector<Attempt> OptionsWithGroups(const View& view) const;
  static std::vector<Attempt> Seeds(const View& view);
  // Whether the shard has accepted contributions to the closing round, of which none is known to be
  // missing permanently.
  bool HasContributions(const View& view) const;

  bool has_values_;
  std::string reason_;
  std::optional<Attempt> attempt_;
  std::vector<Attempt> failed_;
  std::optional<uint32_t> hollow_;
};

}  // namespace cadre
