"""Pipeline schedules by id.  To add one: a file here, and a line in SCHEDULES."""

from __future__ import annotations

from cost_models.schedules.base import PipelineSchedule
from cost_models.schedules.dualpipe import DUALPIPE
from cost_models.schedules.dualpipe_v import DUALPIPE_V
from cost_models.schedules.gpipe import GPIPE
from cost_models.schedules.hanayo import HANAYO
from cost_models.schedules.interleaved import INTERLEAVED
from cost_models.schedules.interleaved_zero_bubble import INTERLEAVED_ZERO_BUBBLE
from cost_models.schedules.looped_bfs import LOOPED_BFS
from cost_models.schedules.naive import NAIVE
from cost_models.schedules.one_f_one_b import ONE_F_ONE_B
from cost_models.schedules.pipedream import PIPEDREAM
from cost_models.schedules.pipedream_2bw import PIPEDREAM_2BW
from cost_models.schedules.v_half import V_HALF
from cost_models.schedules.v_min import V_MIN
from cost_models.schedules.zb_h1 import ZB_H1
from cost_models.schedules.zb_h2 import ZB_H2
from cost_models.schedules.zb_v import ZB_V

# Plain schedules first, then zero-bubble ones, then bidirectional ones and waves.
SCHEDULES: dict[str, PipelineSchedule] = {
    schedule.id: schedule
    for schedule in (
        NAIVE,
        GPIPE,
        PIPEDREAM,
        PIPEDREAM_2BW,
        ONE_F_ONE_B,
        INTERLEAVED,
        LOOPED_BFS,
        ZB_H1,
        ZB_H2,
        INTERLEAVED_ZERO_BUBBLE,
        ZB_V,
        V_HALF,
        V_MIN,
        DUALPIPE,
        DUALPIPE_V,
        HANAYO,
    )
}
