#include "coordinator/events/event_log.h"

#include <algorithm>
#include <utility>

#include "base/peer_text.h"
#include "base/status.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

constexpr uint32_t kDefaultLimit = 1000;

}  // namespace

absl::Status EventLog::Load(const std::string& key, const std::string& bytes) {
  v1::ClusterEvent event;
  CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, event));
  events_.push_back(std::move(event));
  return absl::OkStatus();
}

void EventLog::Add(v1::ClusterEvent event, absl::Time now, Outbox& out) {
  event.set_number(newest() + 1);
  event.set_time_ms(absl::ToUnixMillis(now));
  event.set_text(ShortReason(event.text()));
  out.Put(EventKey(event.number()), event);
  events_.push_back(std::move(event));
  while (events_.size() > keep_) {
    out.EraseOne(EventKey(events_.front().number()));
    events_.pop_front();
  }
}

v1::EventsReply EventLog::Read(const v1::EventsRequest& request) const {
  v1::EventsReply reply;
  reply.set_newest(newest());
  const size_t limit = request.limit() == 0 ? kDefaultLimit : request.limit();
  auto it = std::partition_point(events_.begin(), events_.end(), [&](const auto& event) {
    return event.number() <= request.after();
  });
  for (; it != events_.end() && std::cmp_less(reply.events_size(), limit); ++it) {
    if (request.run().empty() || it->run() == request.run()) *reply.add_events() = *it;
  }
  return reply;
}

}  // namespace cadre
