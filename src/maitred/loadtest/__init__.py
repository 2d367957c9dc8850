"""LOADTEST: a server asked at a chosen pace, and what came of it told honestly; knows no server of ours from inside."""
