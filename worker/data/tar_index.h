// The samples of a tar shard: pairs of an image KEY.jpg (or .jpeg) and a label KEY.cls.
//
// Links are followed to files of the same archive. Every key with an image or a label is either a
// sample or unusable, with a reason; all other members are counted.
//
// Thread-safe (pure function over a source).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/byte_source.h"

namespace cadre {

struct TarSample {
  std::string key;
  int32_t label = 0;
  // Offset of the first header of the image's member, from which its name can be read.
  int64_t header = 0;
  // Offset and size of the image.
  int64_t begin = 0;
  int64_t size = 0;
};

struct TarIndex {
  // In the order of the images' members.
  std::vector<TarSample> samples;
  // Keys that are not samples because a member of the pair is missing or cannot be read: with the
  // reason, in the order of the members.
  std::vector<std::pair<std::string, absl::Status>> unusable;
  // The number of members that are neither folders, images nor labels, by ending (".json") or kind
  // ("devices and the like").
  std::map<std::string, int64_t> unused;
};

// Errors, naming the source: those of TarScanner; InvalidArgument if a key has two images or two
// labels.
absl::StatusOr<TarIndex> IndexTarShard(const ByteSource& source);

}  // namespace cadre
