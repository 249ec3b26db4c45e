#include "coordinator/run/run_view.h"

namespace cadre {

v1::CoordinatorMessage RunView::RunEnded(bool done, absl::string_view reason) const {
  v1::CoordinatorMessage message;
  v1::RunEnded& ended = *message.mutable_run_ended();
  ended.set_run(id());
  ended.set_done(done);
  ended.set_reason(std::string(reason));
  ended.set_version(record().version());
  ended.set_step(record().step());
  return message;
}

v1::CoordinatorMessage RunView::CloseRun() const {
  v1::CoordinatorMessage message;
  message.mutable_close_run()->set_run(id());
  return message;
}

}  // namespace cadre
