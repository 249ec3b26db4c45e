// Parse, IsError and IsOk, for the tests of workers.
#pragma once

#include <glog/logging.h>

#include "tests/base/expect.h"
