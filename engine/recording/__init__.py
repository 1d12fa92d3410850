"""Step recordings: written beside the engine, read anywhere."""

from schedtop.engine.recording.frames import Marks, RecordingError
from schedtop.engine.recording.reader import Mark, Recording
from schedtop.engine.recording.writer import RecordingWriter, check_new

__all__ = ["Mark", "Marks", "Recording", "RecordingError", "RecordingWriter", "check_new"]
